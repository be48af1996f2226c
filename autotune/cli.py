"""The command line: one thin function a command; what a command needs is imported inside it."""

from __future__ import annotations

import errno
import os
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
    from autotune.pipeline import engines_of, read_study, run_study
    from autotune.report.live import LiveView
    from autotune.report.show import show
    from autotune.trial.store import RunDirectory

    spec = read_study(file)
    run = RunDirectory(runs / spec.name)
    try:
        with LiveView(spec, finished=run.trials() if resume else []) as view:
            summary = run_study(spec, engines_of(spec), run, view, resume=resume)
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
    from autotune.pipeline import engines_of, read_study
    from autotune.study import uneven
    from autotune.trial.store import to_json

    spec = read_study(file)
    reports = {name: check_study(spec.of_engine(name), engine) for name, engine in engines_of(spec).items()}
    for name, report in reports.items():
        heading = "" if name is None or as_json else f"Engine {name}\n"
        text = to_json(report).decode() if as_json else "\n".join(lines(report, spec.objective.load)) + "\n"
        typer.echo(heading + text, nl=False)
    for line in uneven(spec, max(1, *(len(report.gpus) for report in reports.values()))):
        typer.echo(line, err=as_json)
    code = max(report.exit_code for report in reports.values())
    if code is not ExitCode.OK:
        raise typer.Exit(code)


@app.command()
def bench(
    url: Annotated[str, typer.Argument(metavar="URL", help="A running OpenAI-compatible server: http://host:port.")],
    *,
    objective: Annotated[
        str | None, typer.Option(metavar="NAME|FILE", help="What it is judged by; default: chat.")
    ] = None,
    rate: Annotated[float | None, typer.Option(metavar="R", help="Poisson arrivals, R requests a second.")] = None,
    concurrency: Annotated[int | None, typer.Option(metavar="C", help="A closed loop of C clients.")] = None,
    capacity: Annotated[bool, typer.Option("--capacity", help="Search the highest load that meets the SLOs.")] = False,
    model: Annotated[str | None, typer.Option(help="Which of the server's models; default: its only one.")] = None,
    duration: Annotated[float | None, typer.Option(metavar="S", help="Seconds that a level measures.")] = None,
    warmup: Annotated[float | None, typer.Option(metavar="S", help="Seconds before that, not measured.")] = None,
    repeats: Annotated[int | None, typer.Option(metavar="N", help="Levels, each with requests of its own.")] = None,
    aa: Annotated[int | None, typer.Option(metavar="N", help="N equal levels: how far they differ by noise.")] = None,
    gpus: Annotated[int, typer.Option(min=1, help="GPUs of the server: divides per-GPU figures.")] = 1,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Of the prompts; default: a new one, so that no cache knows them.")
    ] = None,
    api_key_env: Annotated[str | None, typer.Option(metavar="NAME", help="Variable that holds the API key.")] = None,
    cross_check: Annotated[
        str | None, typer.Option(metavar="vllm-bench|aiperf", help="Measure the same level with that tool too.")
    ] = None,
    cross_check_command: Annotated[
        str | None, typer.Option(metavar="COMMAND", help="What starts that tool; default: found on PATH.")
    ] = None,
    export: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write every request: FILE.jsonl or FILE.parquet.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write bench.json and requests.jsonl there.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the record as JSON.")] = False,
) -> None:
    """Measure a server that is running, and judge it by an objective."""
    from autotune.bench import Load, Options, bench_url

    options = Options(
        url=url,
        objective=objective,
        load=Load(
            rate_rps=rate,
            concurrency=concurrency,
            capacity=capacity,
            duration_s=duration,
            warmup_s=warmup,
            repeats=repeats,
            aa=aa,
        ),
        model=model,
        gpus=gpus,
        seed=seed,
        api_key_env=api_key_env,
        cross_check=cross_check,
        cross_check_command=cross_check_command,
        export=export,
        output=output,
    )
    code = bench_url(options, as_json=as_json)
    if code is not ExitCode.OK:
        raise typer.Exit(code)


@app.command()
def prepare(file: StudyFile) -> None:
    """Fetch a study's model and image and make its variants, so that trials need neither network nor preparation."""
    from autotune.engines.prepare import prepare
    from autotune.pipeline import prepare_variants, read_study

    spec = read_study(file)
    prepared = {
        name: prepare(spec.of_engine(name), lambda text: typer.echo(text, err=True)) for name in spec.engine_names
    }
    for line in dict.fromkeys(line for one in prepared.values() for line in one.lines):
        typer.echo(line)
    for line in prepare_variants(spec, lambda text: typer.echo(text, err=True)):
        typer.echo(line)
    for name, one in prepared.items():
        whose = "trials" if name is None else f"trials of engine {name}"
        typer.echo(f"{whose} will run {'offline' if one.offline else 'as HF_HUB_OFFLINE or the arguments say'}")


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
def compare(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN…", help="Folders of runs: two or more, or one of several engines.")
    ],
    allow: Annotated[
        list[str] | None,
        typer.Option(metavar="seed|model|tokenizer|weights|gpus", help="Let this differ; may be given repeatedly."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Say which of several runs, or engines of one, found the better configuration, and what is inside the noise."""
    from rich.console import Console

    from autotune.compare import compare_runs, render
    from autotune.trial.store import to_json

    comparison = compare_runs(runs, allow or ())
    if as_json:
        typer.echo(to_json(comparison), nl=False)
    else:
        Console().print(render(comparison))


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
def export(
    run: Run,
    *,
    kind: Annotated[
        str | None, typer.Option("--format", "-f", metavar="NAME", help="What to write; without it, what there is.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", help="Write files there; default: one file on stdout."),
    ] = None,
    image: Annotated[
        str | None, typer.Option(metavar="IMAGE", help="The engine's image; default: that of the version measured.")
    ] = None,
    fallback: Annotated[
        str | None, typer.Option(metavar="PROVIDER/MODEL|RUN", help="What a proxy turns to (litellm).")
    ] = None,
    limits: Annotated[
        bool, typer.Option("--limits", help="Add the suggested limits to the engine's arguments, where it has them.")
    ] = False,
    engine: Annotated[
        str | None, typer.Option(metavar="NAME", help="Of several engines, this one's best; default: the best of all.")
    ] = None,
    pick: Annotated[
        str | None,
        typer.Option(metavar="throughput|latency|knee|N", help="Of the front, or trial N; default: the best."),
    ] = None,
) -> None:
    """Write a run's best configuration for a deployment: YAML, script, compose, Kubernetes, Triton, proxy, rollout."""
    from autotune.deploy.command import export_run, fallback_of, format_lines
    from autotune.deploy.deployment import Asked, best_of_engine, picked_trial
    from autotune.trial.store import RunDirectory

    if kind is None:
        typer.echo("\n".join(format_lines()))
        return
    if engine is not None and pick is not None:
        raise typer.BadParameter("--engine and --pick both say which trial: give one")
    trial = None if engine is None else best_of_engine(RunDirectory(run), engine)
    trial = trial if pick is None else picked_trial(RunDirectory(run), pick)
    asked = Asked(image=image, fallback=None if fallback is None else fallback_of(fallback), limits=limits)
    export_run(RunDirectory(run), kind, output, asked, typer.echo, trial=trial)


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
        try:
            app(standalone_mode=True)
        finally:
            sys.stdout.flush()
    except AutotuneError as error:
        typer.echo(f"autotune: {error}", err=True)
        sys.exit(error.exit_code)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter's last flush would fail again
        typer.echo(f"autotune: {error.filename or 'the output'} can't be written: {error.strerror}", err=True)
        sys.exit(ExitCode.ENVIRONMENT)


if __name__ == "__main__":
    main()
