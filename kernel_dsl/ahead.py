"""Compile before the first call, in child processes. The disk cache holds the results.

Children are forked, because a body may be a function that a new process can't import. A child traces, lowers and assembles. It
never uses a GPU, which does not work after a fork.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

from .ahead_calls import calls_of, noted
from .arguments import an_int
from .boundary import checks_itself
from .children import ChildError, in_children
from .diagnostics import shown
from .errors import BadArgumentType
from .errors_dims import WarmFailed
from .loading import assembled, compiling, gpu_target
from .options import environment
from .stages import target_named


@checks_itself("work", "jobs")
def warm(work: Any, jobs: int | None = None) -> int:
    """Compile kernels in child processes, into the disk cache, before their first calls.

    Returns the number of signatures.

    `work`: a list of (kernel, *arguments) or (kernel, (*arguments,)), with the arguments of one call as `lower` takes
    them: arrays, `ShapeDtypeStruct`s, scalars. In place of a kernel it may be a function that calls kernels, such as
    `kd.library.matmul` or `functools.partial(kd.library.attention, causal=True)`. It runs on arrays of zeros, and the
    kernels that it calls are compiled. For Dims in its structs, which have a `max`, it runs with many of their values;
    so all kernels are there that a call with any value is likely to take. `jobs`: processes at a time, by default one
    a CPU core. Later calls, in any process with the same cache, load the compiled kernels. Without a disk cache `warm`
    does nothing. Raises `BadArgumentType`, the errors of tracing and compiling as a call raises them, exceptions of a
    body or function as it raises them, and `WarmFailed` for a child that ends without an error message.
    """
    count = an_int(os.cpu_count() or 1 if jobs is None else jobs, "warm", "jobs", low=1)
    if not isinstance(work, (list, tuple)):
        raise BadArgumentType(op="warm", what=f"work={shown(work)}", hint="a list of (kernel or function, specs)")
    calls = [_call(item) for item in cast("Sequence[Any]", work)]
    if environment().cache_off:
        return 0
    target = gpu_target()
    made = _compile([partial(_assemble, *call, target) for call in calls if hasattr(call[0], "warm")], count)
    functions = [run for call in calls if not hasattr(call[0], "warm") for run in calls_of(*call)]
    found = noted(functions) if functions else []
    return made + _compile([partial(_compile_calls, *each, target) for each in found], count)


def _compile_calls(kernel: Any, calls: Any, target: str | None) -> int:
    with compiling(target_named(target)):
        return kernel._compile_for(calls)


def _assemble(kernel: Any, specs: tuple[Any, ...], target: str | None) -> int:
    assembled(kernel.lower(*specs, target=kernel.target or target))
    return 1


def _call(item: Any) -> tuple[Any, tuple[Any, ...]]:
    parts = cast("Sequence[Any]", item) if isinstance(item, (list, tuple)) else ()
    if not parts or not (hasattr(parts[0], "warm") or callable(parts[0])):
        hint = "a kernel, or a function that calls kernels, and the arguments that it is compiled for, in a tuple"
        raise BadArgumentType(op="warm", what=f"{shown(item)} in work", hint=hint)
    given = parts[1] if len(parts) == 2 and isinstance(parts[1], (list, tuple)) else parts[1:]
    return parts[0], tuple(cast("Sequence[Any]", given))


def _compile(work: Sequence[Callable[[], int]], jobs: int) -> int:
    """Compile each in a child, `jobs` at a time. Raises the first error after all children have ended.

    Returns the sum of what they return. An exception of the user's code comes from a repetition in this process: so it is
    the same object with its whole traceback.
    """
    counts = in_children(work, jobs)
    for run, made in zip(work, counts, strict=True):
        if isinstance(made, ChildError):
            if made.raised:
                run()
            raise WarmFailed(what=str(made))
        if isinstance(made, Exception):
            raise made
    return sum(counts)
