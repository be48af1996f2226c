"""Real readers of each format accept it: compose's rules, Kubernetes' schemas, Triton's protobuf, shells."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from autotune.deploy import Asked, exporter
from autotune.deploy.command import fallback_of
from autotune.deploy.promql import HISTOGRAMS
from autotune.engines import simulated
from autotune.records.spec import EngineKind, EngineSpec, StudySpec
from tests.deploy.deployments import CASES, contained, deployment_of, documents, interpolated, spec_of

ENGINES = (EngineKind.VLLM, EngineKind.TENSORRT_LLM)
KUBERNETES = ("1.29", "1.37")
WAYS = [(kind, way) for kind in ENGINES for way in (spec_of, contained)]


def written(kind: EngineKind, name: str, spec: StudySpec | None = None, **changes: Any) -> str:
    """The format's own file."""
    return next(iter(exporter(name)(deployment_of(kind, spec=spec, **changes)).values()))


@pytest.mark.parametrize("model", ["meta-llama/Llama-3.1-8B-Instruct", "/data/a:b $x/llama"])
@pytest.mark.parametrize(("kind", "way"), WAYS)
def test_compose_accepts_the_file(kind: EngineKind, way: Any, model: str) -> None:
    """What compose reads after its interpolation; `compose_spec` refuses unknown keys and bad values."""
    compose_spec = pytest.importorskip("compose_spec")
    text = written(kind, "compose", way(kind), model=model)
    known = {"HOST": "127.0.0.1", "PORT": "8000", "HF_TOKEN": "t"}
    document = _each(yaml.safe_load(text), lambda word: interpolated(word, known))
    assert compose_spec.PyCompose.from_yaml(yaml.safe_dump(document)).service_names() == ["engine"]
    document["services"]["engine"]["shm_sise"] = "1g"
    with pytest.raises(ValueError, match="shm_sise"):
        compose_spec.PyCompose.from_yaml(yaml.safe_dump(document))


def _each(value: Any, change: Any) -> Any:
    if isinstance(value, dict):
        return {key: _each(inner, change) for key, inner in value.items()}
    if isinstance(value, list):
        return [_each(inner, change) for inner in value]
    return change(value) if isinstance(value, str) else value


@pytest.mark.integration
@pytest.mark.parametrize(("kind", "way"), WAYS)
def test_docker_compose_itself_accepts_it(kind: EngineKind, way: Any, tmp_path: Path) -> None:
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "compose", "version"], capture_output=True, check=False).returncode:
        pytest.skip("no `docker compose` here")
    (tmp_path / "compose.yaml").write_text(written(kind, "compose", way(kind)))
    env = {"HF_TOKEN": "t", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [docker, "compose", "config", "-q"], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize(("kind", "way"), WAYS)
def test_kubernetes_accepts_its_objects(kind: EngineKind, way: Any, version: str) -> None:
    """Strictly: unknown fields are errors. A Rollout's template is a Deployment's."""
    validate = pytest.importorskip("kubernetes_validate")
    objects = documents(written(kind, "kubernetes", way(kind)))
    assert set(objects) == {"Deployment", "Service"} | ({"ConfigMap"} if kind is EngineKind.TENSORRT_LLM else set())
    for document in objects.values():
        validate.validate(document, version, strict=True)
    rollout = documents(written(kind, "argo-rollouts", way(kind)))["Rollout"]
    assert rollout["spec"]["template"] == objects["Deployment"]["spec"]["template"]
    objects["Deployment"]["spec"]["replica"] = 1
    with pytest.raises(validate.ValidationError):
        validate.validate(objects["Deployment"], version, strict=True)


@pytest.mark.parametrize("name", ["kubernetes", "argo-rollouts"])
def test_kubernetes_takes_secrets_from_a_secret(name: str) -> None:
    """A value made of several pieces refers to variables that stand before it."""
    env = {"AUTH": "Bearer ${HF_TOKEN} $(x) $", "HF_TOKEN": "${HF_TOKEN}", "VLLM_API_KEY": "${KEY}"}
    spec = spec_of(EngineKind.VLLM, engine=EngineSpec(kind=EngineKind.VLLM, env=env))
    for document in documents(written(EngineKind.VLLM, name, spec)).values():
        for container in document["spec"].get("template", {"spec": {"containers": []}})["spec"]["containers"]:
            given = {one["name"]: one for one in container["env"]}
            for secret in ("HF_TOKEN", "KEY"):
                reference = given[secret]["valueFrom"]["secretKeyRef"]
                assert reference == {"name": "llama-8b-chat-env", "key": secret}
            assert given["AUTH"]["value"] == "Bearer $(HF_TOKEN) $$(x) $$"
            assert given["VLLM_API_KEY"]["value"] == "$(KEY)"
            assert list(given)[:2] == ["HF_TOKEN", "KEY"]


def model_config() -> ModuleType:
    """Triton's own protobuf of a model's configuration, without the client around it, which wants gRPC."""
    pytest.importorskip("google.protobuf")
    client = importlib.util.find_spec("tritonclient")
    if client is None or client.origin is None:
        pytest.skip("no tritonclient here")
    path = Path(client.origin).parent / "grpc" / "model_config_pb2.py"
    spec = importlib.util.spec_from_file_location("model_config_pb2", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_triton_reads_its_configuration() -> None:
    from google.protobuf import text_format

    texts = exporter("triton")(deployment_of(EngineKind.TENSORRT_LLM))
    configs = {name: text for name, text in texts.items() if name.endswith("config.pbtxt")}
    assert configs
    for name, text in configs.items():
        config = text_format.Parse(text, model_config().ModelConfig())
        assert config.name == name.partition("/")[0]
        assert "text_output" in {one.name for one in config.output}
        with pytest.raises(text_format.ParseError):
            text_format.Parse(text.replace("dims", "dim"), model_config().ModelConfig())


@pytest.mark.parametrize("way", [spec_of, contained])
@pytest.mark.parametrize(("kind", "name"), [case for case in CASES if case[1] in ("shell", "docker", "triton-legacy")])
def test_shells_read_the_scripts(kind: EngineKind, name: str, way: Any) -> None:
    for file, text in exporter(name)(deployment_of(kind, spec=way(kind))).items():
        if file.endswith(".sh"):
            for shell in ("sh", "bash"):
                subprocess.run([shell, "-n"], input=text.encode(), check=True, capture_output=True)


@pytest.mark.integration
def test_the_legacy_script_fills_the_templates(tmp_path: Path) -> None:
    """With stand-ins for `trtllm-build` and TensorRT-LLM's sources; its fill_template.py does what this one does."""
    sources = tmp_path / "TensorRT-LLM" / "triton_backend"
    for part in ("preprocessing", "postprocessing", "ensemble", "tensorrt_llm_bls", "tensorrt_llm"):
        folder = sources / "all_models" / "inflight_batcher_llm" / part
        folder.mkdir(parents=True)
        (folder / "config.pbtxt").write_text(
            "batch ${triton_max_batch_size} kv ${kv_cache_free_gpu_mem_fraction} ${batch_scheduler_policy} "
            "${enable_kv_cache_reuse} ${enable_chunked_context} at ${engine_dir} ${tokenizer_dir}"
        )
    (sources / "tools").mkdir()
    (sources / "tools" / "fill_template.py").write_text(
        "import string, sys\n_, _, path, pairs = sys.argv\ntext = open(path).read()\n"
        "values = dict(pair.split(':') for pair in pairs.split(','))\n"
        "open(path, 'w').write(string.Template(text).safe_substitute(values))\n"
    )
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "trtllm-build").write_text('#!/bin/sh\nprintf "%s\\n" "$@" > built\n')
    (tools / "trtllm-build").chmod(0o755)
    script = exporter("triton-legacy")(deployment_of(EngineKind.TENSORRT_LLM))["triton-legacy.sh"]
    env = {"PATH": f"{tools}:/usr/bin:/bin", "TRTLLM": str(sources.parent), "CHECKPOINT": "c d", "TOKENIZER": "/t k"}
    subprocess.run(["sh"], input=script.encode(), cwd=tmp_path, env=env, check=True, capture_output=True)
    built = (tmp_path / "built").read_text().splitlines()
    assert built[:2] == ["--checkpoint_dir", "c d"]
    assert built[4:] == ["--max_batch_size", "256", "--max_seq_len", "8192"]
    filled = (tmp_path / "triton_repository" / "tensorrt_llm" / "config.pbtxt").read_text()
    assert filled == f"batch 256 kv 0.85 max_utilization true true at {tmp_path}/engine ${{tokenizer_dir}}"
    assert "/t k" in (tmp_path / "triton_repository" / "preprocessing" / "config.pbtxt").read_text()


# --- the proxy, and the canary ----------------------------------------------------------------------------------------

LITELLM_PARAMS = {"model", "api_base", "api_key", "weight", "rpm", "tpm", "max_parallel_requests"}
ROUTER = {"routing_strategy", "optional_pre_call_checks", "num_retries", "fallbacks"}
"""Keys that LiteLLM 1.110 reads (litellm/types/router.py, router.py): scripts/litellm_check.py runs its own router."""


@pytest.mark.parametrize("kind", ENGINES)
def test_the_proxy_has_measured_limits_weights_and_a_fallback(kind: EngineKind) -> None:
    asked = Asked(fallback=fallback_of("openai/gpt-4o-mini"))
    document = yaml.safe_load(written(kind, "litellm", asked=asked))
    best, reference, fallback = document["model_list"]
    assert set(document) == {"model_list", "router_settings", "general_settings"}
    assert all(set(entry["litellm_params"]) <= LITELLM_PARAMS for entry in document["model_list"])
    assert set(document["router_settings"]) == ROUTER
    given = best["litellm_params"]
    assert (given["rpm"], given["tpm"], given["max_parallel_requests"]) == (1200, 360000, 106)
    assert (given["weight"], reference["litellm_params"]["weight"]) == (10, 90)
    assert best["model_name"] == reference["model_name"]
    assert document["router_settings"]["fallbacks"] == [{best["model_name"]: [fallback["model_name"]]}]
    assert fallback["litellm_params"] == {"model": "openai/gpt-4o-mini"}


def test_a_run_whose_best_is_the_reference_moves_nothing() -> None:
    deployment = deployment_of(EngineKind.VLLM)
    for reference in (deployment.trial, None):
        texts = exporter("litellm")(replace(deployment, reference=reference))
        (entry,) = yaml.safe_load(texts["litellm.yaml"])["model_list"]
        assert "weight" not in entry["litellm_params"]
        assert "REFERENCE_API_BASE" not in texts["litellm.yaml"]


@pytest.mark.parametrize("kind", ENGINES)
def test_the_canary_is_judged_by_the_studys_slos(kind: EngineKind) -> None:
    text = written(kind, "argo-rollouts")
    objects = documents(text)
    metrics = objects["AnalysisTemplate"]["spec"]["metrics"]
    first = metrics[0]
    name = {EngineKind.VLLM: "vllm:", EngineKind.TENSORRT_LLM: "trtllm_"}[kind] + "time_to_first_token_seconds_bucket"
    assert first["provider"]["prometheus"]["query"] == (
        f'histogram_quantile(0.99, sum by (le) (rate({name}{{pod=~"llama-8b-chat-{{{{args.canary-hash}}}}-.*"}}[5m])))'
    )
    assert first["successCondition"] == "len(result) > 0 && result[0] <= 0.5"
    assert first["failureCondition"] == "len(result) > 0 && result[0] > 0.5"
    assert len(metrics) == (2 if kind is EngineKind.VLLM else 1)
    assert ("Not judged, having no metric of the engine: error_ratio" in text) is (kind is EngineKind.TENSORRT_LLM)
    steps = objects["Rollout"]["spec"]["strategy"]["canary"]["steps"]
    assert [step["setWeight"] for step in steps if "setWeight" in step] == [10, 25, 50]
    used = {step["analysis"]["templates"][0]["templateName"] for step in steps if "analysis" in step}
    assert used == {objects["AnalysisTemplate"]["metadata"]["name"]}


def test_metrics_are_names_that_vllm_shows() -> None:
    """Each stands in the page of the simulated server's protocol, which is vLLM's."""
    shown = "\n".join(path.read_text() for path in Path(simulated.__file__).parent.glob("*.py"))
    for name in HISTOGRAMS[EngineKind.VLLM].values():
        assert re.search(re.escape(name.removeprefix("vllm:")), shown), name
