"""Deployments to export, and what each format starts, read back the way its own reader would."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from autotune.deploy import Asked, Deployment, make_deployment
from autotune.records.spec import ContainerSpec, EngineKind, EngineSpec, PriceSpec, StudySpec
from autotune.records.trial import Capacity, Cleanup, TrialRecord, fingerprint
from autotune.trial.store import RunDirectory
from tests.runs import dozen, estimate, study, summary

REFERENCE, BEST = dozen()[0], dozen()[5]
VERSIONS = {EngineKind.VLLM: {"vllm": "0.32.0"}, EngineKind.TENSORRT_LLM: {"tensorrt_llm": "1.2.0"}}
ARGS: Mapping[EngineKind, Mapping[str, Any]] = {
    EngineKind.VLLM: {"max_model_len": 8192, "max_num_seqs": 192, "tensor_parallel_size": 2},
    EngineKind.TENSORRT_LLM: {
        "max_batch_size": 256,
        "max_seq_len": 8192,
        "tensor_parallel_size": 2,
        "enable_chunked_prefill": True,
        "kv_cache_config.free_gpu_memory_fraction": 0.85,
        "kv_cache_config.enable_block_reuse": True,
        "scheduler_config.capacity_scheduler_policy": "MAX_UTILIZATION",
    },
}
VLLM_FORMATS = ("vllm-yaml", "shell", "docker", "compose", "kubernetes", "litellm", "argo-rollouts")
TRTLLM_FORMATS = ("trtllm-yaml", "shell", "docker", "compose", "kubernetes", "triton", "litellm", "argo-rollouts")
CASES = [
    *((EngineKind.VLLM, name) for name in VLLM_FORMATS),
    *((EngineKind.TENSORRT_LLM, name) for name in (*TRTLLM_FORMATS, "triton-legacy")),
]


def measured(record: TrialRecord, kind: EngineKind, args: Mapping[str, Any] | None = None) -> TrialRecord:
    """A trial with a capacity of 20 requests/s, 4 s an answer, 200 prompt and 100 answer tokens."""
    args = ARGS[kind] if args is None else args
    more = {
        "e2e_ms.mean": estimate(4000),
        "e2e_ms.p99": estimate(9000),
        "ttft_ms.p50": estimate(100),
        "total_tok_per_s": estimate(6000),
        "output_tok_per_s": estimate(2000),
        "request_rps": estimate(20),
    }
    return replace(
        record,
        args=args,
        fingerprint=fingerprint(kind.value, record.model, args),
        measurements=tuple(
            replace(level, offered_rps=20.0, values={**level.values, **more}) for level in record.measurements
        ),
        capacity=Capacity(of="rps", value=estimate(20.0), method="twin", levels=3, load_s=100.0),
        versions={"autotune": "0.1.0", **VERSIONS[kind], "gpus": "NVIDIA H100 80GB HBM3"},
        startup_kind="warm",
        cleanup=Cleanup(left_processes=0, port_free=True, stop_s=2.5),
        gpus=2,
    )


def spec_of(kind: EngineKind, **changes: Any) -> StudySpec:
    """A study of that engine: a key by reference, a path of the machine that measures."""
    env = {"HF_TOKEN": "${HF_TOKEN}", "HF_HOME": "/scratch/tuner/hub", "NCCL_DEBUG": "WARN"}
    spec = study(engine=EngineSpec(kind=kind, env=env), price=PriceSpec(usd_per_gpu_hour=2.5, rate_rps=60))
    spec = replace(spec, search_space=replace(spec.search_space, engine=kind))
    return replace(spec, **changes)


def contained(kind: EngineKind, **changes: Any) -> StudySpec:
    """The same, measured in a container with a volume by name and one of the host."""
    container = ContainerSpec(
        image="registry.example/engine:v1",
        mounts=("cache:/root/.cache/vllm", "/scratch/tuner/kernels:/kernels"),
        options=("--cpus", "16", "--env-file", "/scratch/tuner/env"),
    )
    env = {"HF_TOKEN": "${HF_TOKEN}", "HF_HOME": "/models"}
    return spec_of(kind, engine=EngineSpec(kind=kind, env=env, container=container), **changes)


def deployment_of(
    kind: EngineKind, args: Mapping[str, Any] | None = None, *, spec: StudySpec | None = None, **changes: Any
) -> Deployment:
    """A deployment; `model` and whatever else is of the trial, `asked` of the wishes."""
    asked = changes.pop("asked", Asked())
    best = replace(measured(BEST, kind, args), **changes)
    reference = measured(REFERENCE, kind, {"max_num_seqs": 256})
    cold = replace(best, number=1, startup_s=80.0, startup_kind="cold")
    run = RunDirectory(Path("nowhere"))
    return make_deployment(run, spec or spec_of(kind), best, reference, summary(), trials=[cold, best], asked=asked)


# --- reading back -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Started:
    """What a deployment starts: its words, host and port apart, and the options in the engine's file."""

    words: tuple[str, ...]
    options: Mapping[str, Any] | None = None


def as_vllm_reads(text: str) -> list[str]:
    """`load_config_file` of vLLM 0.32, its lookup of `--no-x` left out: older releases drop a false boolean."""
    words: list[str] = []
    for key, value in yaml.safe_load(text).items():
        if value is True:
            words.append("--" + key)
        elif isinstance(value, list) and value:
            words.append("--" + key)
            words.extend(str(item) for item in value)
        elif isinstance(value, dict):
            words.extend(["--" + key, json.dumps(value)])
        elif value is not False and value != []:
            words.extend(["--" + key, str(value)])
    return words


def shell_words(script: str, **environ: str) -> list[str]:
    """A real shell reads the script; only its `exec` is replaced, by telling the words."""
    start = script.rindex("\nexec ") + 1
    told = script[:start] + script[start:].replace("exec ", "printf '%s\\0' ", 1)
    env = {"PATH": "/usr/bin:/bin", "HOME": "/home/owner", **environ}
    done = subprocess.run(["sh"], input=told.encode(), env=env, capture_output=True, check=True)
    return done.stdout.decode().split("\0")[:-1]


def interpolated(text: str, known: Mapping[str, str] = {}) -> str:
    """As compose reads a value: `$$` is `$`, `${X:-default}` and `${X:?error}` variables; any other `$` is wrong."""

    def value(match: re.Match[str]) -> str:
        if match.group() == "$$":
            return "$"
        name, _, rest = match.group(1).partition(":")
        return known.get(name, rest[1:] if rest.startswith("-") else f"<{name}>")

    assert "$" not in re.sub(r"\$\$|\$\{[^}]*\}", "", text), f"compose would refuse {text!r}"
    return re.sub(r"\$\$|\$\{([^}]*)\}", value, text)


def expanded(text: str) -> str:
    """As Kubernetes reads a command or a value (its golang/expansion): `$$` is `$`, `$(X)` a variable."""
    assert not re.search(r"(?<!\$)(\$\$)*\$\(", text), f"Kubernetes would look for a variable in {text!r}"
    return re.sub(r"\$\$", "$", text)


def without_address(words: Sequence[str]) -> tuple[str, ...]:
    """The words without `--host H --port P`, which stand last, or before a file."""
    for place in (len(words) - 4, len(words) - 6):
        if place >= 0 and words[place] == "--host" and words[place + 2] == "--port":
            return (*words[:place], *words[place + 4 :])
    raise AssertionError(f"no address in {words}")


def _shell(texts: Mapping[str, str]) -> Started:
    words = shell_words(texts["serve.sh"], HF_TOKEN="t", PORT="80")
    return Started(without_address(words)[1:], _options(texts))


def _docker(texts: Mapping[str, str]) -> Started:
    words = shell_words(texts["docker-run.sh"], HF_TOKEN="t")
    return Started(without_address(words[words.index("--entrypoint") + 3 :]), _options(texts))


def _options(texts: Mapping[str, str]) -> Mapping[str, Any] | None:
    return yaml.safe_load(texts["options.yaml"]) if "options.yaml" in texts else None


def _compose(texts: Mapping[str, str]) -> Started:
    document = yaml.safe_load(texts["compose.yaml"])
    words = [interpolated(word) for word in document["services"]["engine"]["command"]]
    content = document.get("configs", {}).get("options-yaml", {}).get("content")
    return Started(without_address(words), None if content is None else yaml.safe_load(interpolated(content)))


def documents(text: str) -> dict[str, Any]:
    """Kubernetes objects by their kind."""
    return {document["kind"]: document for document in yaml.safe_load_all(text)}


def _pod(kind: str, file: str) -> Callable[[Mapping[str, str]], Started]:
    def read(texts: Mapping[str, str]) -> Started:
        objects = documents(texts[file])
        (container,) = objects[kind]["spec"]["template"]["spec"]["containers"]
        files = objects.get("ConfigMap", {}).get("data")
        words = without_address([expanded(word) for word in container["args"]])
        return Started(words, None if files is None else yaml.safe_load(files["options.yaml"]))

    return read


def _vllm_yaml(texts: Mapping[str, str]) -> Started:
    model, *words = as_vllm_reads(texts["vllm.yaml"])[1:]
    return Started(("serve", model, *words))


def _trtllm_yaml(texts: Mapping[str, str]) -> Started:
    return Started((), _options(texts))


def _triton(texts: Mapping[str, str]) -> Started:
    document = yaml.safe_load(texts["tensorrt_llm/1/model.yaml"])
    own = {"model", "backend", "triton_config"}
    return Started(("serve", document["model"]), {k: v for k, v in document.items() if k not in own})


READERS: Mapping[str, Callable[[Mapping[str, str]], Started]] = {
    "vllm-yaml": _vllm_yaml,
    "trtllm-yaml": _trtllm_yaml,
    "shell": _shell,
    "docker": _docker,
    "compose": _compose,
    "kubernetes": _pod("Deployment", "kubernetes.yaml"),
    "argo-rollouts": _pod("Rollout", "argo-rollouts.yaml"),
    "triton": _triton,
}
START_NOTHING = {"litellm", "triton-legacy"}
"""A proxy, and a script that fills TensorRT-LLM's own templates with the options that these have."""
