"""What is written reads back as the same study."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.records import spec as s
from autotune.records.metrics import PLAIN, MetricKind, known_names
from autotune.study import dump_study, load_study, shipped_objectives, shipped_spaces
from tests.study.writing import SOUND, write

ROOT = Path(__file__).parents[2]

names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True)
arguments = st.from_regex(r"[a-z][a-z0-9_]{0,12}(\.[a-z][a-z0-9_]{0,5})?", fullmatch=True)
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=30)
positive = st.floats(1e-6, 1e9)
whole = st.integers(1, 2**40)
scalars = (
    st.booleans() | st.integers(-(2**63) + 1, 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False) | texts
)
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3))
args = st.dictionaries(texts, values, max_size=4)


@st.composite
def domains(draw: st.DrawFn) -> s.Domain:
    low, high = sorted((draw(whole), draw(whole)))
    log = draw(st.booleans())
    if draw(st.booleans()):
        return s.IntRange(low=low, high=high, log=log, step=1 if log else draw(st.integers(1, 9)))
    if draw(st.booleans()):
        step = None if log else draw(st.none() | positive)
        return s.FloatRange(low=float(low), high=float(high), log=log, step=step)
    return s.Choice(values=tuple(draw(st.lists(scalars, min_size=1, max_size=4, unique=True))))


@st.composite
def parameters(draw: st.DrawFn) -> s.ParameterSpec:
    return s.ParameterSpec(
        name=draw(arguments),
        domain=draw(domains()),
        when=draw(st.none() | texts),
        why=draw(st.just("") | texts),
        changes_output=draw(st.booleans()),
    )


@st.composite
def lengths(draw: st.DrawFn) -> s.Length:
    low, median, high = sorted(draw(st.integers(2, 10**6)) for _ in range(3))
    forms: list[s.Length] = [
        s.FixedLength(tokens=low),
        s.UniformLength(low=low, high=high),
        s.LogNormalLength(median=float(median), sigma=draw(positive), low=low, high=high),
    ]
    return draw(st.sampled_from(forms))


@st.composite
def slos(draw: st.DrawFn) -> s.Slo:
    metric = draw(st.sampled_from(known_names()))
    ratio = PLAIN.get(metric) is MetricKind.RATIO
    return s.Slo(
        metric=metric, limit=draw(st.floats(0, 1) if ratio else positive), bound=draw(st.sampled_from(list(s.Bound)))
    )


@st.composite
def objectives(draw: st.DrawFn) -> s.ObjectiveSpec:
    load: dict[str, Any] = draw(st.sampled_from([{"poisson_rps": draw(positive)}, {"concurrency": draw(whole)}]))
    return s.ObjectiveSpec(
        name=draw(names),
        metric=draw(st.sampled_from(known_names())),
        direction=draw(st.sampled_from(list(s.Direction))),
        slos=tuple(draw(st.lists(slos(), max_size=4, unique_by=lambda slo: slo.metric))),
        workload=s.WorkloadSpec(
            shape=draw(texts),
            input_tokens=draw(lengths()),
            output_tokens=draw(lengths()),
            prefix=draw(st.none() | st.just(s.PrefixSpec(tokens=1, groups=3))),
        ),
        load=s.LoadSpec(**load, duration_s=draw(positive), max_requests=draw(st.none() | whole), repeats=2),
        confidence=draw(st.floats(0.51, 0.99)),
    )


@st.composite
def studies(draw: st.DrawFn) -> s.StudySpec:
    kind = draw(st.sampled_from(list(s.EngineKind)))
    simulate = s.SimulateSpec(gpu=draw(texts), time_scale=draw(positive), faults=("x",))
    return s.StudySpec(
        name=draw(names),
        model=draw(texts),
        engine=s.EngineSpec(
            kind=kind,
            command=tuple(draw(st.lists(texts, max_size=3))),
            args=draw(args),
            env={"A_B": draw(texts)},
            startup_timeout_s=draw(positive),
            simulate=simulate if kind is s.EngineKind.SIMULATED else None,
        ),
        search_space=s.SpaceSpec(
            name=draw(names),
            engine=kind,
            parameters=tuple(draw(st.lists(parameters(), min_size=1, max_size=3, unique_by=lambda p: p.name))),
            derived=draw(st.dictionaries(arguments, texts, max_size=2)),
            rules=tuple(draw(st.lists(texts, max_size=2))),
        ),
        objective=draw(objectives()),
        hardware=s.HardwareSpec(gpus=draw(st.sampled_from([None, (), (0, 3), ("GPU-1", 2)]))),
        incumbent=draw(st.none() | args),
        budget=s.BudgetSpec(trials=draw(whole), hours=draw(st.none() | positive)),
        sampler=s.SamplerSpec(kind=draw(st.sampled_from(["auto", "tpe", "gp"]))),
        seed=draw(st.integers(0, 2**31 - 1)),
        storage=draw(st.none() | texts),
        quality=draw(st.sampled_from([None, "unchecked"])),
    )


def _again(spec: s.StudySpec, folder: Path) -> s.StudySpec:
    return load_study(write(folder, dump_study(spec), "again.yaml"))


@settings(max_examples=60, deadline=None)
@given(studies())
def test_any_study_reads_back_equal(spec: s.StudySpec) -> None:
    with tempfile.TemporaryDirectory() as folder:
        assert _again(spec, Path(folder)) == spec


@pytest.mark.parametrize("path", sorted(ROOT.glob("studies/*.yaml")), ids=lambda path: path.stem)
def test_every_example_reads_back_equal(path: Path, tmp_path: Path) -> None:
    spec = load_study(path)
    assert _again(spec, tmp_path) == spec


@pytest.mark.parametrize("space", shipped_spaces())
@pytest.mark.parametrize("objective", shipped_objectives())
def test_every_shipped_pair_reads_back_equal(space: str, objective: str, tmp_path: Path) -> None:
    text = f"name: x\nmodel: m\nengine: {{kind: vllm}}\nsearch_space: {space}\nobjective: {objective}\n"
    spec = load_study(write(tmp_path, text))
    assert _again(spec, tmp_path) == spec


def test_a_dataset_stays_where_it_was(tmp_path: Path) -> None:
    write(tmp_path, "{}", "rows.jsonl")
    spec = load_study(write(tmp_path, SOUND.replace("input_tokens: 128", "dataset: rows.jsonl")))
    (tmp_path / "elsewhere").mkdir()
    assert _again(spec, tmp_path / "elsewhere") == spec


@given(st.dictionaries(st.just("a"), scalars | st.sampled_from(["yes", "1e3", "0o7", "010", "1_0", ".5", "null", "~"])))
def test_other_yaml_readers_see_the_same_values(fixed: dict[str, Any]) -> None:
    """PyYAML's own loader, of YAML 1.1, stands for them."""
    engine = s.EngineSpec(kind=s.EngineKind.VLLM, args=fixed)
    with tempfile.TemporaryDirectory() as folder:
        sound = load_study(write(Path(folder), SOUND))
    spec = s.StudySpec(name="x", model="m", engine=engine, search_space=sound.search_space, objective=sound.objective)
    assert yaml.safe_load(dump_study(spec))["engine"]["args"] == fixed
