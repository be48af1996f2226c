"""`autotune dashboard RUN`: Optuna Dashboard on a run's storage, on loopback only, until Ctrl-C."""

from __future__ import annotations

import sys
import webbrowser
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from autotune.errors import EnvironmentFault, InputError
from autotune.trial.store import RunDirectory

if TYPE_CHECKING:
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial, TrialState

HOST = "127.0.0.1"

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


def open_dashboard(run: RunDirectory, *, port: int | None, open_browser: bool) -> None:
    """Serve the dashboard of a run, print its URL on stdout, and block until Ctrl-C, which ends it cleanly.

    `port`: None takes a free one. Raises InputError when the run has no storage yet, EnvironmentFault when the
    dashboard isn't installed or the port is taken.
    """
    with dashboard_server(run, port) as server:
        url = f"http://{HOST}:{server.server_port}/dashboard"
        try:
            sys.stdout.write(f"{url}    (Ctrl-C ends it)\n")
            sys.stdout.flush()
            if open_browser:
                webbrowser.open(url)
            server.serve_forever()
        except KeyboardInterrupt:
            sys.stderr.write("dashboard ended\n")


@contextmanager
def dashboard_server(run: RunDirectory, port: int | None) -> Iterator[WSGIServer]:
    """Bind the dashboard of a run to loopback; `serve_forever` on what is yielded answers requests."""
    application = only_loopback(_application(storage_url(run)))
    try:
        server = make_server(HOST, port or 0, application, server_class=_Server, handler_class=_QuietHandler)
    except OSError as error:
        raise EnvironmentFault(
            f"port {port} of {HOST} can't be used: {error.strerror}", "leave --port out to take a free one"
        ) from error
    with server:
        yield server


def storage_url(run: RunDirectory) -> str:
    """Return the storage of a run. Raises InputError when it isn't there, which a database would hide by making it."""
    spec = run.spec()
    if spec.storage:
        return spec.storage
    if not (run.path / "study.db").exists():
        raise InputError(f"{run.path} has no study.db yet", "start the study first, or look with `autotune show`")
    return run.storage_url


def only_loopback(application: Application) -> Application:
    """Refuse requests under another host name: the dashboard can delete studies, and a web page that a browser was
    led to believe lies on this machine (DNS rebinding) must not reach it."""

    def guarded(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if str(environ.get("HTTP_HOST", "")).rpartition(":")[0] not in (HOST, "localhost"):
            start_response("403 Forbidden", [("Content-Type", "text/plain")])
            return [b"only 127.0.0.1 and localhost are served\n"]
        return application(environ, start_response)

    return guarded


def _application(url: str) -> Application:
    try:
        from optuna_dashboard import wsgi  # noqa: PLC0415 - an extra
    except ImportError:
        raise EnvironmentFault("Optuna Dashboard is not installed", "pip install 'autotune-llm[dashboard]'") from None
    application: Application = wsgi(_with_constraints(url))
    return application


def _with_constraints(url: str) -> BaseStorage:
    """The storage as the dashboard reads it: 0.21 looks for constraints where Optuna kept them before 5.0, and without
    them calls the trial with the best value best, whatever SLO it missed."""
    from optuna.storages import RDBStorage  # noqa: PLC0415 - heavy

    class Shown(RDBStorage):
        def get_all_trials(
            self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
        ) -> list[FrozenTrial]:
            trials = super().get_all_trials(study_id, deepcopy, states)
            for trial in trials:
                trial.system_attrs = {**trial.system_attrs, "constraints": [*trial.constraints.values()]}
            return trials

    return Shown(url)


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True  # a browser's open connection must not keep Ctrl-C waiting


class _QuietHandler(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Every poll of the page would be a line."""
