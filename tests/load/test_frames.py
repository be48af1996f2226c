"""Frames on the pipe."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from autotune.load.frames import Frame, FrameReader, Kind, pack

FRAMES = st.tuples(
    st.sampled_from(Kind), st.dictionaries(st.text(), st.integers() | st.none() | st.text()), st.binary(max_size=50)
)


@given(st.lists(FRAMES, max_size=5), st.lists(st.integers(0, 400), max_size=8))
def test_frames_survive_any_cutting(frames: list[tuple[Kind, dict[str, Any], bytes]], cuts: list[int]) -> None:
    data = b"".join(pack(*frame) for frame in frames)
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    reader = FrameReader()
    read = [frame for a, b in pairwise(edges) for frame in reader.feed(data[a:b])]
    assert read == [Frame(*frame) for frame in frames]
