"""The command line: one thin function a command; what a command needs is imported inside it."""

from __future__ import annotations

import sys
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated

import typer

from autotune import __version__
from autotune.errors import AutotuneError, ExitCode, Interrupted

app = typer.Typer(
    name="autotune",
    help="Find the serving configuration of an LLM inference engine that does best under a service-level objective.",
    epilog="Exit codes: 0 ok, 2 bad input, 3 nothing meets the objective, 4 environment, 130 interrupted.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

StudyFile = Annotated[Path, typer.Argument(metavar="FILE", help="Study file (YAML).")]
Run = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run: runs/<study>.")]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"autotune {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    """Hold the options of the program itself."""


@app.command()
def study(
    file: StudyFile,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run of this study.")] = False,
    runs: Annotated[Path, typer.Option(help="Where the run directory is made.")] = Path("runs"),
    accept_unsure: Annotated[
        bool, typer.Option("--accept-unsure", help="Exit 0 although an SLO of the best could not be settled.")
    ] = False,
) -> None:
    """Run a study until its budget is spent."""
    from autotune.engines.base import engine_for
    from autotune.pipeline import read_study, run_study
    from autotune.report.live import LiveView
    from autotune.report.show import show
    from autotune.trial.store import RunDirectory

    spec = read_study(file)
    run = RunDirectory(runs / spec.name)
    try:
        with LiveView(spec, finished=run.trials() if resume else []) as view:
            summary = run_study(spec, engine_for(spec), run, view, resume=resume)
    except KeyboardInterrupt:  # caught here: typer ends the program on one without a word
        raise Interrupted("interrupted; finished trials are kept", "go on with --resume") from None
    show(run)
    if summary.best is None or not (summary.settled or accept_unsure):
        raise typer.Exit(ExitCode.NOTHING_FEASIBLE)


@app.command()
def check(
    file: StudyFile,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Say what a study would do, without a launch: its space, what is excluded and why, and its cost in time."""
    from autotune.check import check_study, lines
    from autotune.engines.base import engine_for
    from autotune.pipeline import read_study
    from autotune.trial.store import to_json

    spec = read_study(file)
    report = check_study(spec, engine_for(spec))
    typer.echo(to_json(report) if as_json else "\n".join(lines(report, spec.objective.load)), nl=not as_json)
    if report.exit_code is not ExitCode.OK:
        raise typer.Exit(report.exit_code)


@app.command(name="show")
def show_command(run: Run, as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False) -> None:
    """Say what a run has found so far."""
    from autotune.report.show import show, show_json
    from autotune.trial.store import RunDirectory

    if as_json:
        show_json(RunDirectory(run))
    else:
        show(RunDirectory(run))


@app.command()
def report(
    run: Run,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Default: RUN/report.html.")] = None,
) -> None:
    """Write a run's report as one self-contained HTML file."""
    from autotune.report.html import write_report
    from autotune.trial.store import RunDirectory

    typer.echo(write_report(RunDirectory(run), output or run / "report.html"))


@app.command()
def dashboard(
    run: Run,
    port: Annotated[int | None, typer.Option(help="Default: a free one.")] = None,
    browser: Annotated[bool, typer.Option(help="Open it in the browser.")] = True,
) -> None:
    """Open Optuna Dashboard on a run, on loopback."""
    from autotune.report.dashboard import open_dashboard
    from autotune.trial.store import RunDirectory

    open_dashboard(RunDirectory(run), port=port, open_browser=browser)


@app.command()
def spaces(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Print this one, to copy and change.")] = None,
) -> None:
    """List the search spaces that are shipped."""
    from autotune.study import shipped_spaces

    _list_shipped("search space", shipped_spaces(), name)


@app.command()
def objectives(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Print this one, to copy and change.")] = None,
) -> None:
    """List the objectives that are shipped."""
    from autotune.study import shipped_objectives

    _list_shipped("objective", shipped_objectives(), name)


def _list_shipped(kind: str, files: dict[str, Path], name: str | None) -> None:
    from autotune.errors import InputError
    from autotune.study import shipped_description

    if name is None:
        width = max(map(len, files))
        for shipped, path in sorted(files.items()):
            typer.echo(f"{shipped:<{width}}  {shipped_description(path)}")
    elif name in files:
        typer.echo(files[name].read_text(), nl=False)
    else:
        raise InputError(f"no {kind} is called {name!r}", f"there are: {', '.join(sorted(files))}")


@app.command()
def schema(
    kind: Annotated[str, typer.Argument(metavar="[study|search_space|objective]")] = "study",
) -> None:
    """Print the JSON Schema of study files, for editors."""
    import json

    from autotune.errors import InputError
    from autotune.study import objective_schema, space_schema, study_schema

    schemas = {"study": study_schema, "search_space": space_schema, "objective": objective_schema}
    if kind not in schemas:
        raise InputError(f"no schema is called {kind!r}", f"there are: {', '.join(schemas)}")
    typer.echo(json.dumps(schemas[kind](), indent=2))


def main() -> None:
    """Run the command line; every error that is meant for the user ends as one message and its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # `±` and `★` are worth no traceback where the locale lacks them
            stream.reconfigure(errors="replace")
    try:
        app(standalone_mode=True)
    except AutotuneError as error:
        typer.echo(f"autotune: {error}", err=True)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
