"""A model repository as the stand-in for Triton reads it, refused as Triton and the backend's model would refuse it.

In: its folder. Out: `Repository`; or StartupFailure after the server's own error line. The checks are those of core's
model_repository_manager.cc, model_config_utils.cc and ensemble_utils.cc that an engine's parameters can break.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.engines.simulated import triton_logs
from autotune.engines.simulated.process import StartupFailure
from autotune.engines.triton.pbtxt import PbtxtError, parse

_FAILED = "error: creating server: Internal - failed to load all models"
Config = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """What came of the files: `options` is model.yaml without `triton_config`. `delay_s` None: no dynamic batching."""

    model: str
    options: Mapping[str, Any]
    front: str
    backend: str
    max_batch: int
    preferred: tuple[int, ...]
    delay_s: float | None
    instances: int


def read_repository(folder: Path) -> Repository:
    """Read and check it."""
    configs = {path.parent.name: _config(path) for path in sorted(folder.glob("*/config.pbtxt"))}
    backends = [name for name, config in configs.items() if config.get("backend") == "python"]
    if not backends:
        raise _refused(f"Poll failed for model directory '{folder}': it has no model of the Python backend")
    config = configs[backends[0]]
    fronts = [name for name, other in configs.items() if other.get("platform") == "ensemble"]
    for name in fronts:
        _check_ensemble(configs[name], configs)
    yaml_file = _yaml(folder / backends[0] / "1" / "model.yaml")
    triton = yaml_file.pop("triton_config", {})
    return Repository(
        model=str(yaml_file.pop("model", "")),
        options={name: value for name, value in yaml_file.items() if name != "backend"},
        front=fronts[0] if fronts else backends[0],
        backend=backends[0],
        **_batching(config, triton),
        instances=_instances(config),
    )


def _refused(line: str, source: str = "model_repository_manager.cc:1335") -> StartupFailure:
    triton_logs.write(line, source=source, level="E")
    return StartupFailure(_FAILED)


def _config(path: Path) -> Config:
    try:
        config = parse(path.read_text(encoding="utf-8"))
    except PbtxtError as error:
        raise _refused(
            f"Poll failed for model directory '{path.parent.name}': failed to read text proto from {path}: {error}"
        ) from error
    if config.get("name") != path.parent.name:
        raise _refused(f"unexpected directory name '{path.parent.name}' for model '{config.get('name')}'")
    if not (path.parent / "1").is_dir():
        raise _refused(f"Poll failed for model directory '{path.parent.name}': at least one version must be available")
    return config


def _yaml(path: Path) -> dict[str, Any]:
    import yaml  # noqa: PLC0415 - only a start reads it

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise _failed_to_load(f"Failed to parse YAML engine config: {error}") from error
    if not isinstance(content, dict) or "triton_config" not in content:
        raise _failed_to_load("KeyError: 'triton_config'")
    return content


def _failed_to_load(why: str) -> StartupFailure:
    return _refused(f"failed to load 'tensorrt_llm' version 1: Internal: {why}", "model_lifecycle.cc:626")


def _batching(config: Config, triton: Mapping[str, Any]) -> dict[str, Any]:
    most = int(triton.get("max_batch_size", 0))
    if int(config.get("max_batch_size", 0)) > most:
        raise _failed_to_load(
            f"ValueError: configuration specified max_batch_size {config['max_batch_size']}, but in "
            f"auto-complete-config function for model '{config['name']}' specified max_batch_size {most}"
        )
    if not triton.get("decoupled"):
        raise _failed_to_load("Streaming is only supported in decoupled mode.")
    dynamic = config.get("dynamic_batching")
    sizes = () if dynamic is None else tuple(dynamic.get("preferred_batch_size", ()))
    if any(size < 1 or size > most for size in sizes):
        raise _failed_to_load(f"dynamic batching preferred size must be <= max batch size for {config['name']}")
    delay_s = None if dynamic is None else dynamic.get("max_queue_delay_microseconds", 0) * 1e-6
    return {"max_batch": max(most, 1), "preferred": sizes, "delay_s": delay_s}


def _instances(config: Config) -> int:
    groups = config.get("instance_group") or [{}]
    count = int(groups[0].get("count", 1))
    parameters = {entry["key"]: entry["value"]["string_value"] for entry in config.get("parameters", ())}
    if count > 1 and "gpu_device_ids" not in parameters:
        raise _failed_to_load("ValueError: gpu_device_ids parameter required when instance count > 1")
    if count > 1 and (entries := parameters["gpu_device_ids"].count(";") + 1) < count:
        raise _failed_to_load(f"ValueError: gpu_device_ids mismatch: instance {entries} >= {entries} entries")
    return count


def _check_ensemble(config: Config, configs: Mapping[str, Config]) -> None:
    """Each step's model is there, its inputs and outputs exist, and types agree."""
    name = config["name"]
    own = {tensor["name"]: tensor for tensor in (*config["input"], *config["output"])}
    used: set[str] = set()
    for step in config["ensemble_scheduling"]["step"]:
        model = configs.get(step["model_name"])
        if model is None:
            raise _refused(f"Invalid argument: ensemble '{name}' depends on '{step['model_name']}' which is not found")
        if 0 < int(model.get("max_batch_size", 0)) < int(config.get("max_batch_size", 0)):
            raise _refused(
                f"ensemble {name} allows maximum batch size {config['max_batch_size']}, but it contains model "
                f"{model['name']} which only allows maximum batch size to be {model['max_batch_size']}"
            )
        for map_name, tensors in (("input_map", model["input"]), ("output_map", model["output"])):
            there = {tensor["name"]: tensor for tensor in tensors}
            for entry in step[map_name]:
                used.add(entry["value"])
                if there.get(entry["key"], {}).get("data_type") != own.get(entry["value"], {}).get("data_type"):
                    raise _refused(
                        f"in ensemble {name}, {entry['value']} does not fit {entry['key']} of {model['name']}"
                    )
    if unused := own.keys() - used:
        raise _refused(f"ensemble input '{min(unused)}' for ensemble {name} is not used")
