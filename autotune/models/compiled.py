"""The kernel's functions compiled by numba, from the very code that runs uncompiled (`autotune.models.kernel`)."""

from __future__ import annotations

import types
from collections.abc import Callable
from functools import cache
from typing import Any

from autotune.models import kernel


@cache
def compile_kernel() -> dict[str, Callable[..., Any]]:
    """Return every function of the kernel by name, compiled when first called and cached on disk by numba.

    Each is a copy whose globals are the compiled ones, so that `kernel` itself stays plain Python. With
    NUMBA_DISABLE_JIT=1 numba hands the functions back as they are.
    """
    import numba  # noqa: PLC0415 - half a second to import: only for those who compile

    names: dict[str, Any] = dict(vars(kernel))
    functions = {
        name: value
        for name, value in names.items()
        if isinstance(value, types.FunctionType) and value.__module__ == kernel.__name__
    }
    for name, function in functions.items():
        copy = types.FunctionType(function.__code__, names, name, function.__defaults__)
        names[name] = numba.njit(cache=True, error_model="numpy")(copy)
    return {name: names[name] for name in functions}
