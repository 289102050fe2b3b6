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
from kernel_dsl.specialisations import Specialisation
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
def counted() -> Iterator[list[str]]:
    """The names of kernels that are traced meanwhile. Nothing is lowered, and results are zeros."""
    found: list[str] = []
    once = body_trace._trace_once

    def traced(definition: Any, *args: Any) -> Any:
        found.append(definition.name)
        return once(definition, *args)

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(body_trace, "_trace_once", traced))
        stack.enter_context(mock.patch.object(Specialisation, "on", _on))
        stack.enter_context(mock.patch.object(Kernel, "_call", _call))
        yield found
