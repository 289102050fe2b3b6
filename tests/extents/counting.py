"""Calls that trace kernels and run none: how many compiles they would take."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np

from kernel_dsl import body_trace
from kernel_dsl.kernel import Kernel
from kernel_dsl.library.first_sizes import KeptConfigs, Memory
from kernel_dsl.specialisations import Specialisation, Table
from kernel_dsl.tree import unflatten


def _on(made: Specialisation, device: Any, sizes: Any, identity: str = "") -> Any:
    traced = made.stages.traced
    return SimpleNamespace(kernel=SimpleNamespace(outputs=(), output_tree=0, traced=traced, shapes=sizes.shapes))


def _call(kernel: Kernel, args: tuple[Any, ...], out: Any, stream: Any, interpret: Any) -> Any:
    prepared = kernel._prepare(args, out, True)
    if out is not None:
        return out
    traced, shapes = prepared.kernel.traced, prepared.kernel.shapes[len(prepared.arrays) :]
    made = [np.zeros(shape, spec.dtype.numpy) for shape, spec in zip(shapes, traced.outputs, strict=True)]
    return unflatten(traced.output_tree, made)


@contextmanager
def none_before() -> Iterator[None]:
    """No library call came before."""
    with ExitStack() as stack:
        for memory in list(Memory.all):
            stack.enter_context(mock.patch.dict(memory.known, clear=True))
            if isinstance(memory, KeptConfigs):
                stack.enter_context(mock.patch.object(memory, "_warm", set()))
        yield


@contextmanager
def traced() -> Iterator[list[str]]:
    """The names of kernels that are traced meanwhile, and of those that a call takes first: a process of its own would
    compile these.

    Earlier tests of this process may have had the same kernel. Nothing is compiled without a trace or an entry of this
    process.
    """
    found: list[str] = []
    taken: set[Specialisation] = set()
    plans: dict[int, Any] = {}  # of the traces; one that reads a size too late is repeated with its plan
    trace_once, find, add = body_trace._trace_once, Table.find, Table.add

    def tracing(definition: Any, inputs: Any, structure: Any, plan: Any, *more: Any) -> Any:
        if id(plan) not in plans:
            plans[id(plan)] = plan
            found.append(definition.name)
        return trace_once(definition, inputs, structure, plan, *more)

    def finding(table: Table, *args: Any) -> Specialisation | None:
        made = find(table, *args)
        if made is not None and made not in taken:
            taken.add(made)
            found.append(made.name)
        return made

    def adding(table: Table, signature: Any, made: Specialisation) -> None:
        taken.add(made)
        add(table, signature, made)

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(body_trace, "_trace_once", tracing))
        stack.enter_context(mock.patch.object(Table, "find", finding))
        stack.enter_context(mock.patch.object(Table, "add", adding))
        yield found


@contextmanager
def counted() -> Iterator[list[str]]:
    """What `traced` gives, of calls that lower nothing and whose results are zeros."""
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(Specialisation, "on", _on))
        stack.enter_context(mock.patch.object(Kernel, "_call", _call))
        yield stack.enter_context(traced())
