"""Loads a traced kernel on a device, through the caches of the process. Like kernel.py and stages.py it joins the layers."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from typing import Any, cast

from .blocks import settle
from .compiled import Assembled, Condition, Resources, SourceLine
from .dataclass import make_methods
from .definition import ArrayInput
from .lazy import once
from .memory import Barrier
from .options import CompilerParams, environment
from .sizes import Sizes
from .source import Loc, here
from .stages import Stages, warn_of_remarks
from .target import Limits
from .transforms import SwizzleTransform, TilingTransform

_NVSHMEM = "nvshmem_"  # in the texts of kernels that call NVSHMEM's device functions


@once
def kernel_cache() -> Any:
    """The process's cache of assembled kernels, in front of the disk cache."""
    from kernel_dsl.runtime.build.cache import KernelCache
    from kernel_dsl.runtime.disk_cache import DiskCache

    env = environment()
    return KernelCache(None if env.cache_off else DiskCache(env.cache_dir))


@once
def import_launches() -> None:
    """Import what a launch of a kernel in the disk cache needs, and prepare what does not depend on the call.

    It opens no device and no cache.
    """
    for name in (".assemble", ".build.cache", ".disk_cache", ".plan.calls", ".plan.dispatch"):
        import_module(f"kernel_dsl.runtime{name}")
    import_module("kernel_dsl.runtime.devices.driver").import_bindings()
    import_module("kernel_dsl.runtime.arrays.array_view").import_interops()
    import_module("kernel_dsl.runtime.build.sources").looked_at()
    import_module("kernel_dsl.serialize").know_fields()
    make_methods(ArrayInput, Barrier, CompilerParams, Condition, Limits, SourceLine, SwizzleTransform, TilingTransform)


def interpreted(interpret: Any) -> bool:
    """Whether a call with this `interpret=` runs in the interpreter. With None it does so if there is no GPU."""
    if interpret is None:
        from kernel_dsl.runtime.devices import driver

        return not driver.available()
    return interpret is not False


def gpu_target() -> str | None:
    """The target of the GPU that calls run on; None without one."""
    from kernel_dsl.runtime.devices import driver
    from kernel_dsl.runtime.devices.devices import cuda_device

    return cuda_device(None).target.name if driver.available() else None


def gpu_name() -> str | None:
    """The name of the current GPU; None without one."""
    from kernel_dsl.runtime.devices import devices, driver

    return devices.cuda_device().name if driver.available() else None


@once
def interpreted_cache() -> Any:
    """The process's cache of kernels for the interpreter, which are not assembled."""
    from kernel_dsl.runtime.build.cache import KernelCache

    return KernelCache(None)


def _without_code(stages: Stages) -> Assembled:
    return Assembled(stages.for_any, b"", Resources(0, 0, 0, 0, 0, 0))


def load(stages: Stages, device: Any, sizes: Sizes | None = None) -> Any:
    """The kernel on a device, compiled if the caches have none of the same text; for the interpreter, with these sizes."""
    from kernel_dsl.runtime.build.cache import cache_key

    target, params = stages.target.name, stages.params
    options = repr((params, stages.overlaps, stages.traced.outputs, stages.traced.output_tree))
    if device.kind != "cuda":
        key = cache_key(stages.key_text, target=target, options=options, assembler="none")
        found = interpreted_cache().get_or_build(key, lambda: _without_code(stages), _places(stages)).kernel
        own = stages.traced.sizes if sizes is None else sizes
        return device.load(settle(found, own.shapes, own.grid))
    return _load_machine_code(stages.key_text, target, options, stages.assembled_for_any, _places(stages), device)


def assembled(stages: Stages) -> Assembled:
    """A kernel's machine code, from the caches or built, without a device. Warns of the assembler's remarks."""
    made = machine_code(stages)
    warn_of_remarks(made)
    return made


def machine_code(stages: Stages) -> Assembled:
    """As `assembled`, without warnings."""
    made = kernel_cache().get_or_build(_text_key(stages), stages.assembled_for_any, _places(stages))
    sizes = stages.traced.sizes
    return made if sizes.sampled else replace(made, kernel=settle(made.kernel, sizes.shapes, sizes.grid))


def _text_key(stages: Stages) -> str:
    """The key of a kernel's machine code by its IR."""
    from kernel_dsl.runtime.assemble import AssemblerOptions, assembler_identity
    from kernel_dsl.runtime.build.cache import cache_key

    options = repr((stages.params, stages.overlaps, stages.traced.outputs, stages.traced.output_tree))
    library_for = stages.target.name if _NVSHMEM in stages.key_text else ""
    identity = assembler_identity(AssemblerOptions(ptxas=environment().ptxas), library_for=library_for)
    return cache_key(stages.key_text, target=stages.target.name, options=options, assembler=identity)


def load_identified(
    identity: str, stages: Callable[[], Stages], target: str, params: CompilerParams, device: Any
) -> Any:
    """The kernel on a GPU, traced if the caches have none of the same `identity`. All of its ops are at one line."""

    def build() -> Assembled:
        made = stages()  # `kd.warm` may have compiled it, without its identity
        return kernel_cache().known(_text_key(made), _places(made)) or made.assembled_for_any()

    return _load_machine_code(identity, target, repr(params), build, [_line(here())], device)


def _load_machine_code(
    text: str, target: str, options: str, build: Callable[[], Assembled], places: list[SourceLine], device: Any
) -> Any:
    """The kernel, from the caches or built, with line numbers of the present source."""
    from kernel_dsl.runtime.assemble import AssemblerOptions, assembler_identity
    from kernel_dsl.runtime.build.cache import cache_key
    from kernel_dsl.runtime.errors import LoadError

    options_of = AssemblerOptions(ptxas=environment().ptxas)
    assembler = assembler_identity(options_of, library_for=target if _NVSHMEM in text else "")
    key = cache_key(text, target=target, options=options, assembler=assembler)
    cache = kernel_cache()
    assembled = cache.get_or_build(key, build, places)
    warn_of_remarks(assembled)  # also for a kernel from the cache
    try:
        return device.load(assembled)
    except LoadError:
        again = cache.rebuild(key, build, places)
        if again is None:
            raise
        return device.load(again)


class _Unloaded:
    """A kernel that no device has loaded."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel

    def settled(self, kernel: Any) -> _Unloaded:
        return _Unloaded(kernel)


class Compiling:
    """A device in a GPU's place. It loads nothing, so kernels only go into the caches."""

    kind: str = "cuda"
    index: int = -1

    def __init__(self, target: Any) -> None:
        self.target = target

    def load(self, made: Assembled) -> _Unloaded:
        return _Unloaded(made.kernel)


@contextmanager
def compiling(target: Any) -> Generator[None]:
    """Let kernels that are prepared for a call be compiled for `target`, and loaded nowhere."""
    from kernel_dsl.runtime.devices.devices import watching

    token = watching.set(cast("Any", Compiling(target)))
    try:
        yield
    finally:
        watching.reset(token)


def noting(notes: Any) -> Any:
    """A context manager: the calls of this thread go to `notes.call`, as to a graph's recorder."""
    from kernel_dsl.runtime.plan.recording import recording

    return recording(notes)


def first_of(array: Any, shape: tuple[int, ...]) -> Any:
    """The first elements of a row-major array, in `shape`; the array itself if it has too few."""
    from kernel_dsl.runtime.arrays.array_view import narrowed, view

    there = view(array)
    return narrowed(array, shape) if there.contiguous and there.size >= math.prod(shape) else array


def _places(stages: Stages) -> list[SourceLine]:
    locs = [stages.ir.loc, *(op.loc for op in stages.ir.walk())]
    lines = {id(loc): _line(loc) for loc in {id(loc): loc for loc in locs}.values()}  # ops of one instruction share one
    return [lines[id(loc)] for loc in locs]


def _line(loc: Loc) -> SourceLine:
    return SourceLine(loc.file, loc.line, loc.function)
