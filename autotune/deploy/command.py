"""`autotune export`: a run and a format come in, files that deploy it go out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from autotune.deploy.deployment import Asked, Fallback, read_deployment
from autotune.deploy.exporters import described, exporter
from autotune.deploy.files import write_files
from autotune.errors import InputError
from autotune.records.spec import EngineKind
from autotune.trial.store import RunDirectory


def export_run(
    run: RunDirectory,
    name: str,
    output: Path | None,
    asked: Asked,
    tell: Callable[[str], None],
    *,
    trial: int | None = None,
) -> None:
    """Write a run's winning trial (or `trial`) in a format: into the folder `output`, else a single file as text by
    `tell`, which ends each text with a line break; in a folder, it is told the paths.

    Raises InputError for an unknown format, a run that has nothing to deploy, several files without a folder.
    """
    export = exporter(name)
    if output is not None and output.exists() and not output.is_dir():
        raise InputError(f"{output} is a file", "give a folder: -o DIR")
    texts = export(read_deployment(run, trial=trial, asked=asked))
    if output is not None:
        write_files(output, texts)
        for file in texts:
            tell(str(output / file))
    elif len(texts) == 1:
        tell(next(iter(texts.values())).removesuffix("\n"))
    else:
        raise InputError(f"{name} has {len(texts)} files: {', '.join(texts)}", "give a folder for them: -o DIR")


def format_lines() -> list[str]:
    """Return a line for each format there is, with what it writes."""
    found = list(described())
    width = max(len(name) for name, _ in found)
    return [f"{name:<{width}}  {text}" for name, text in found]


def fallback_of(text: str) -> Fallback:
    """Return what `--fallback` names: `provider/model`, or the folder of an endpoint's run.

    Raises InputError for anything else.
    """
    if Path(text).is_dir():
        return _endpoint(RunDirectory(Path(text)))
    if not all(text.partition("/")[::2]):
        raise InputError(f"{text!r} is no fallback", "give provider/model as LiteLLM names one, or an endpoint's run")
    return Fallback(model=text)


def _endpoint(run: RunDirectory) -> Fallback:
    spec = run.spec()
    if spec.engine.kind is not EngineKind.ENDPOINT or spec.engine.url is None:
        raise InputError(f"{run.path} is no run of an endpoint", "what is fallen back to must serve already")
    url = spec.engine.url.rstrip("/").removesuffix("/v1")
    return Fallback(model=f"openai/{spec.model}", api_base=f"{url}/v1", api_key_env=spec.engine.api_key_env)
