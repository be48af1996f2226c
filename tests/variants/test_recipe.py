"""What a variant is made from: the digest changes with all that counts, and with nothing else."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.engines.variants.recipe import READ_WHOLE_BYTES, recipe_of
from autotune.errors import EnvironmentFault
from autotune.records.variants import VariantSpec
from tests.builders import study_spec
from tests.variants.maker import checkpoint


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A small model with a script and calibration data beside it."""
    folder = tmp_path / "model"
    folder.mkdir()
    checkpoint(folder)
    (tmp_path / "quantise.py").write_text("print()")
    (tmp_path / "samples").mkdir()
    (tmp_path / "samples" / "one.txt").write_text("one")
    return folder


def variant(model: Path, **changes: object) -> VariantSpec:
    script, samples = model.parent / "quantise.py", model.parent / "samples"
    made = VariantSpec(
        name="w8", command=("python", str(script), "{model}", "--out={output}", "{a: 1}"), inputs=(str(samples),)
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def digest(model: Path, **changes: object) -> str:
    return recipe_of(study_spec(model=str(model)), variant(model, **changes)).digest


def test_the_command_is_given_model_and_output_and_keeps_every_other_brace(model: Path, tmp_path: Path) -> None:
    argv = recipe_of(study_spec(model=str(model)), variant(model)).argv(tmp_path / "new")
    assert argv[2:] == (str(model), f"--out={tmp_path / 'new'}", "{a: 1}")


@pytest.mark.parametrize(
    "changes",
    [
        {"command": ("python", "other.py", "{model}", "{output}")},
        {"versions": {"llmcompressor": "0.9"}},
        {"env": {"BITS": "4"}},
        {"inputs": ()},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_what_the_study_says_counts(model: Path, changes: dict[str, object]) -> None:
    assert digest(model, **changes) != digest(model)


@pytest.mark.parametrize("file", ["../quantise.py", "../samples/one.txt", "config.json", "model.safetensors"])
def test_the_content_of_inputs_of_named_scripts_and_of_the_model_counts(model: Path, file: str) -> None:
    before, path = digest(model), model / file
    data, facts = path.read_bytes(), path.stat()
    path.write_bytes(bytes(len(data)))
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))  # told by nothing but its content
    changed = digest(model)
    path.write_bytes(data)
    assert changed != before == digest(model)


def test_name_limits_and_place_do_not_count(model: Path) -> None:
    assert digest(model, name="int8", timeout_s=1.0, needs_disk_gib=3.0, resumes=True) == digest(model)


def test_a_large_file_counts_by_size_and_time(model: Path) -> None:
    large = model / "more.safetensors"
    with large.open("wb") as file:
        file.truncate(READ_WHOLE_BYTES + 1)
    before, facts = digest(model), large.stat()
    os.utime(large, ns=(facts.st_atime_ns, facts.st_mtime_ns + 1))
    assert digest(model) != before


def test_a_link_of_the_hubs_cache_counts_by_the_hash_it_leads_to(model: Path) -> None:
    blobs = model.parent / "blobs"
    blobs.mkdir()
    for name in ("aaa", "bbb"):
        (blobs / name).write_text("the same")
    found = []
    for name in ("aaa", "bbb", "aaa"):
        (model / "linked.json").unlink(missing_ok=True)
        (model / "linked.json").symlink_to(f"../blobs/{name}")
        found.append(digest(model))
    assert found[0] == found[2] != found[1]


def test_a_link_elsewhere_counts_by_what_it_leads_to(model: Path) -> None:
    target = model.parent / "target.json"
    target.write_text("1")
    (model / "linked.json").symlink_to(target)
    before = digest(model)
    target.write_text("2")
    assert digest(model) != before


def test_an_input_that_is_gone_is_named(model: Path) -> None:
    with pytest.raises(EnvironmentFault, match=r"inputs of variant w8 can't be read: .*nowhere"):
        digest(model, inputs=(str(model.parent / "nowhere"),))


def test_a_model_that_is_not_here_yet_is_passed_by_its_name() -> None:
    spec = study_spec(model="org/not-fetched", variants=())
    assert recipe_of(spec, VariantSpec(name="a", command=("x", "{model}"))).argv(Path("o"))[1] == "org/not-fetched"
