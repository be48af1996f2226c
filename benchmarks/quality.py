"""The quality gate, measured: `python -m benchmarks.quality alarms` and `… vllm`.

`alarms`: how often a second launch of the reference is called wrong, on pretended engines of known noise, under limits
that allow nothing and under the default ones. `vllm MODEL=DIR …`: a real vLLM on the CPU (`make vllm-env`); the first
model is the reference, launched twice, then with FP8 KV caches; the others are checkpoints held against it.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autotune import quality
from autotune.engines.vllm.engine import VllmEngine
from autotune.records.quality import AskedBy, Quality, QualitySpec, QualityStatus, ReferenceAnswers
from autotune.records.spec import EngineKind, EngineSpec
from autotune.records.trial import Candidate, Endpoint, Role
from tests.builders import study_spec
from tests.quality.making import STRICT, Model, reference

ROOT = Path(__file__).parents[1]
ARGS = {"max_num_seqs": 16, "max_model_len": 512, "enforce_eager": True, "dtype": "bfloat16", "block_size": 32}
ENV = {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
KV_DTYPES = ("fp8_e4m3", "fp8_e5m2")
ENGINES = {
    "none": Model(ties=0.0, jitter=0.0),
    "rare ties": Model(ties=0.02),
    "usual": Model(),
    "many ties": Model(ties=0.6),
    "heavy tails": Model(heavy=True),
    "8 prompts": Model(prompts=8),
    "96 prompts": Model(prompts=96),
}


def alarms(launches: int) -> None:
    """Print the rate of false alarms for each pretended engine."""
    print(f"{'engine':<12} {'launches':>8} {'nothing allowed':>16} {'default limits':>15}")
    for name, model in ENGINES.items():
        wrong = {"strict": 0, "default": 0}
        for seed in range(launches):
            rng = random.Random(seed)
            kept, again = reference(model, rng), model.answers(rng)
            for limits, which in ((STRICT, "strict"), (QualitySpec(), "default")):
                found = quality.judge(kept, again, AskedBy.PROMPT_LOGPROBS, limits)
                wrong[which] += found.status is QualityStatus.FAILED
        print(f"{name:<12} {launches:>8} {wrong['strict'] / launches:>15.2%} {wrong['default'] / launches:>14.2%}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A row of the table: a checkpoint and what else is other than the reference's."""

    name: str
    model: Path
    args: Mapping[str, Any]


def launches(models: Mapping[str, Path]) -> Iterator[Launch]:
    """The reference, once more, its KV caches, then the other checkpoints."""
    (name, sound), *others = models.items()
    yield Launch(name=name, model=sound, args={})
    yield Launch(name=f"{name} again", model=sound, args={})
    for dtype in KV_DTYPES:
        yield Launch(name=f"KV {dtype}", model=sound, args={"kv_cache_dtype": dtype})
    for other, path in others:
        yield Launch(name=other, model=path, args={})


def on_vllm(models: Mapping[str, Path], prompts: Path | None, limits: QualitySpec) -> None:
    """Launch each, ask, and print what the judge says."""
    kept: ReferenceAnswers | None = None
    texts = quality.read_prompts(None if prompts is None else str(prompts))
    for launch in launches(models):
        with tempfile.TemporaryDirectory() as folder, _serving(launch, Path(folder)) as server:
            begun = time.monotonic()
            endpoint: Endpoint = server.endpoint
            if kept is None:
                kept = quality.ask_reference(endpoint, texts, trial=0, answer_tokens=limits.answer_tokens, settings={})
                found = quality.own_noise(kept, limits)
                print(f"{found.prompts} prompts, {found.prompt_tokens} tokens, by {kept.asked_by.value}")
            else:
                found = quality.judge(kept, *quality.ask_candidate(endpoint, kept), limits)
            print(_row(launch.name, replace(found, asked_s=time.monotonic() - begun)), flush=True)


def _serving(launch: Launch, folder: Path) -> Any:  # noqa: ANN401 - a context manager of a server
    spec = EngineSpec(
        kind=EngineKind.VLLM, command=(str(ROOT / ".venv-vllm/bin/vllm"),), env=ENV, startup_timeout_s=240
    )
    engine = VllmEngine(study_spec(model=str(launch.model), engine=spec))
    candidate = Candidate(params={}, args={**ARGS, **launch.args}, role=Role.SEARCH, fingerprint="f")
    return engine.launch(candidate, trial_dir=folder, gpus=(), on_phase=lambda _: None)


def _row(name: str, found: Quality) -> str:
    values = " ".join(f"{figure.name}={figure.value:.4f}±{figure.noise:.4f}" for figure in found.figures)
    equal = "-" if found.equal_ratio is None else f"{found.equal_ratio:.2f}"
    parts = "-" if found.first_divergence_tok is None else f"{found.first_divergence_tok:g}"
    return f"{name:<16} {found.status.value:<9} {values} equal={equal} parts_at={parts} asked={found.asked_s:.1f}s"


def _named(text: str) -> tuple[str, Path]:
    name, _, path = text.partition("=")
    return name, Path(path)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["alarms", "vllm"])
    parser.add_argument("models", nargs="*", type=_named, metavar="NAME=DIR")
    parser.add_argument("--launches", type=int, default=5_000)
    parser.add_argument("--prompts", type=Path)
    options = parser.parse_args()
    if options.what == "alarms":
        alarms(options.launches)
    else:
        on_vllm(dict(options.models), options.prompts, QualitySpec())


if __name__ == "__main__":
    main()
