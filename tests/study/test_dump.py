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
from autotune.records.metrics import ENERGY, PLAIN, PRICED, MetricKind, known_names
from autotune.records.quality import QualitySpec
from autotune.study import dump_study, load_study, shipped_objectives, shipped_spaces
from tests.study.writing import SOUND, changed, write

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
def slos(draw: st.DrawFn, metrics: list[str]) -> s.Slo:
    metric = draw(st.sampled_from(metrics))
    ratio = PLAIN.get(metric) is MetricKind.RATIO
    return s.Slo(
        metric=metric, limit=draw(st.floats(0, 1) if ratio else positive), bound=draw(st.sampled_from(list(s.Bound)))
    )


sessions = st.builds(s.SessionSpec, turns=lengths(), think_s=st.just(0.0) | positive)


@st.composite
def workloads(draw: st.DrawFn) -> s.WorkloadSpec:
    both = draw(lengths()), draw(lengths())
    spread = not any(isinstance(length, s.FixedLength) for length in both)
    return s.WorkloadSpec(
        shape=draw(texts),
        input_tokens=both[0],
        output_tokens=both[1],
        correlation=draw(st.floats(-0.9, 0.9)) if spread else 0.0,
        prefix=draw(st.none() | st.just(s.PrefixSpec(tokens=1, groups=3))),
        sessions=draw(st.none() | sessions),
        text=draw(st.sampled_from(["random", "natural"])),
    )


KINDS_OF_LOAD: dict[str, st.SearchStrategy[Any]] = {
    "poisson_rps": positive,
    "constant_rps": positive,
    "gamma": st.builds(s.GammaArrivals, rps=positive, burstiness=positive),
    "bursts": st.builds(
        s.BurstArrivals, rps=positive, factor=st.floats(1.1, 9), burst_s=st.just(2.0), every_s=st.just(9.5)
    ),
    "ramp": st.builds(s.RampArrivals, from_rps=positive, to_rps=positive),
    "concurrency": whole,
    "capacity": st.builds(
        s.CapacitySpec,
        of=st.just("rps"),
        low=st.none() | st.floats(0.1, 1),
        high=st.none() | st.floats(2, 9),
        load_s=positive,
    ),
}


@st.composite
def objectives(draw: st.DrawFn, *, unknown: frozenset[str] = frozenset()) -> s.ObjectiveSpec:
    kind = draw(st.sampled_from(list(KINDS_OF_LOAD)))
    metrics = [name for name in known_names() if not name.startswith("capacity_") and name not in unknown]
    return s.ObjectiveSpec(
        name=draw(names),
        metric="capacity_rps" if kind == "capacity" else draw(st.sampled_from(metrics)),
        direction=draw(st.sampled_from(list(s.Direction))),
        slos=tuple(draw(st.lists(slos(metrics), min_size=1, max_size=4, unique_by=lambda slo: slo.metric))),
        workload=draw(workloads()),
        load=s.LoadSpec(
            **{kind: draw(KINDS_OF_LOAD[kind])},
            duration_s=draw(positive),
            max_requests=draw(st.none() | whole),
            repeats=2,
        ),
        confidence=draw(st.floats(0.51, 0.99)),
        quality=draw(st.none() | qualities),
    )


qualities = st.builds(
    QualitySpec,
    perplexity_ratio=st.none() | st.floats(1, 3),
    token_agreement=st.none() | st.floats(0, 1),
    length_ratio=st.none() | st.floats(1, 3),
    repetition_ratio=st.none() | st.floats(0, 1),
    prompts=st.none() | st.just("/data/prompts.txt"),
    answer_tokens=whole,
)


containers = st.builds(
    s.ContainerSpec,
    runtime=st.sampled_from(["docker", "podman"]),
    image=st.just("vllm/vllm-openai:v0.11.0"),
    mounts=st.just(()) | st.just(("/a:/b", "hub:/root:ro")),
    options=st.just(()) | st.just(("--shm-size=8g", "--env", "HF_TOKEN")),
)


token_prices = st.builds(s.TokenPrice, usd_per_million_input_tok=positive, usd_per_million_output_tok=positive)


@st.composite
def prices(draw: st.DrawFn, *, by_token: bool = False) -> s.PriceSpec:
    ways = ["usd_per_million_output_tok"] if by_token else ["usd_per_gpu_hour", "usd_per_hour"]
    return s.PriceSpec(
        **{draw(st.sampled_from(ways)): draw(positive)},
        usd_per_million_input_tok=draw(st.none() | positive) if by_token else None,
        rate_rps=draw(st.none() | positive),
        headroom_ratio=draw(st.floats(0, 0.9)),
        starts_per_month=draw(positive),
        overheads=draw(st.builds(s.OverheadSpec, network_usd=positive, downtime_hours=positive)),
        api=None if by_token else draw(st.none() | token_prices),
    )


def _unknown(kind: s.EngineKind, price: s.PriceSpec | None) -> frozenset[str]:
    """The metrics that such a study can't have."""
    energy = {ENERGY} if kind in (s.EngineKind.ENDPOINT, s.EngineKind.SIMULATED) else set()
    return frozenset(energy | (set(PRICED) if price is None else set()))


@st.composite
def endpoint_studies(draw: st.DrawFn) -> s.StudySpec:
    price = draw(st.none() | prices() | prices(by_token=True))
    return s.StudySpec(
        name=draw(names),
        model=draw(texts),
        engine=s.EngineSpec(kind=s.EngineKind.ENDPOINT, url="http://h/v1", api_key_env=draw(st.none() | st.just("A"))),
        search_space=s.SpaceSpec(name="none", engine=s.EngineKind.ENDPOINT, parameters=()),
        objective=draw(objectives(unknown=_unknown(s.EngineKind.ENDPOINT, price))),
        budget=s.BudgetSpec(trials=1),
        price=price,
    )


@st.composite
def studies(draw: st.DrawFn) -> s.StudySpec:
    kind = draw(st.sampled_from([kind for kind in s.EngineKind if kind is not s.EngineKind.ENDPOINT]))
    price = draw(st.none() | prices())
    simulate = s.SimulateSpec(gpu=draw(texts), face="server", time_scale=draw(positive), faults=("x",))
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
            container=draw(st.none() | containers),
        ),
        search_space=s.SpaceSpec(
            name=draw(names),
            engine=kind,
            parameters=tuple(draw(st.lists(parameters(), min_size=1, max_size=3, unique_by=lambda p: p.name))),
            derived=draw(st.dictionaries(arguments, texts, max_size=2)),
            rules=tuple(draw(st.lists(texts, max_size=2))),
        ),
        objective=draw(objectives(unknown=_unknown(kind, price))),
        price=price,
        hardware=s.HardwareSpec(
            gpus=draw(st.sampled_from([None, (), (0, 3), ("GPU-1", 2)])),
            when_busy=draw(st.sampled_from(["refuse", "wait"])),
        ),
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
@given(studies() | endpoint_studies())
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
    kind = space.partition("/")[0]
    text = f"name: x\nmodel: m\nengine: {{kind: {kind}}}\nsearch_space: {space}\nobjective: {objective}\n"
    spec = load_study(write(tmp_path, text))
    assert _again(spec, tmp_path) == spec


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("input_tokens: 128", "dataset: f"),
        ("input_tokens: 128, output_tokens: 32", "lengths: f"),
        ("{input_tokens: 128, output_tokens: 32}\n  load: {concurrency: 8}", "{}\n  load: {trace: {file: f}}"),
    ],
)
def test_files_stay_where_they_were(old: str, new: str, tmp_path: Path) -> None:
    write(tmp_path, "{}", "f")
    spec = load_study(write(tmp_path, changed(old, new)))
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
