"""Finds exporters: every module of `formats/` is one, and so is every entry point of the group `autotune.exporters`."""

from __future__ import annotations

import difflib
import inspect
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points

from autotune.deploy import formats
from autotune.deploy.deployment import Deployment
from autotune.errors import EnvironmentFault, InputError

GROUP = "autotune.exporters"

Exporter = Callable[[Deployment], Mapping[str, str]]
"""A pure function: a deployment in, texts of files by their names out (slashes make folders, `.sh` is executable).
Raises InputError for a deployment that it can't write. The first line of its docstring describes the format."""


def exporter(name: str) -> Exporter:
    """Return the exporter of a format.

    Raises InputError with "did you mean" for an unknown one, and for one that two distributions claim;
    EnvironmentFault where the one of another distribution can't be loaded.
    """
    own, others = _own(), _others().get(name, ())
    if name not in own and not others:
        raise InputError(f"no format is called {name!r}", _did_you_mean(name))
    if len(others) + (name in own) > 1:
        claimed = ", ".join([*(["autotune"] if name in own else []), *map(_distribution, others)])
        raise InputError(f"several distributions have a format {name!r}: {claimed}", "uninstall all but one of them")
    return _load(others[0]) if others else _load_own(own[name])


def described() -> Iterator[tuple[str, str]]:
    """Yield each format with the first line of its description; one that can't be loaded says so."""
    names = sorted({*_own(), *_others()})
    for name in names:
        try:
            text = inspect.getdoc(exporter(name)) or ""
        except (InputError, EnvironmentFault) as error:
            text = error.message
        yield name, text.partition("\n")[0]


def _did_you_mean(name: str) -> str:
    names = sorted({*_own(), *_others()})
    close = difflib.get_close_matches(name, names, n=1)
    return f"{f'did you mean {close[0]}? ' if close else ''}there are: {', '.join(names)}"


def _own() -> dict[str, str]:
    """Module by format."""
    return {info.name.replace("_", "-"): info.name for info in pkgutil.iter_modules(formats.__path__)}


def _load_own(module: str) -> Exporter:
    found: Exporter = import_module(f"{formats.__name__}.{module}").export
    return found


def _others() -> dict[str, tuple[EntryPoint, ...]]:
    found: dict[str, tuple[EntryPoint, ...]] = {}
    for point in entry_points(group=GROUP):
        found[point.name] = (*found.get(point.name, ()), point)
    return found


def _load(point: EntryPoint) -> Exporter:
    try:
        found: Exporter = point.load()
    except (ImportError, AttributeError) as error:
        raise EnvironmentFault(
            f"the format {point.name!r} of {_distribution(point)} can't be loaded: {error}", "upgrade or uninstall it"
        ) from error
    return found


def _distribution(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else point.value
