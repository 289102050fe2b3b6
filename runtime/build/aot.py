"""Compiled kernels in files.

One machine makes them, and another calls them without compiler and source.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np

from kernel_dsl import forking
from kernel_dsl.boundary import public, unguarded
from kernel_dsl.compiled import Assembled, CompiledKernel, Resources, ScalarParam
from kernel_dsl.diagnostics import shown
from kernel_dsl.dtypes import DType
from kernel_dsl.serialize import ArtifactError, pack, unpack
from kernel_dsl.tree import flatten, unflatten
from kernel_dsl.well_formed import problem

from ..arrays.array_view import is_array, view
from ..devices.device import Device, Loaded
from ..devices.devices import pick_device
from ..devices.failures import where
from ..errors import ArgumentTypeError, file_error
from ..plan import recording
from ..plan.binding import bind
from ..plan.calls import call
from ..plan.dispatch import FastCalls, first

_LARGEST = 1 << 30  # bytes of a file


def save(compiled: Assembled | CompiledKernel, path: str | os.PathLike[str]) -> None:
    """Write a compiled kernel to `path`, in one step: a reader never sees half a file.

    Raises UnsavableError for a result structure of the user's own classes. A kernel that was not assembled is saved
    with its PTX alone, for the interpreter and for GPUs whose driver compiles it.
    """
    write(path, pack(compiled))


def write(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a file in one step. Raises FileError."""
    try:
        _write(Path(path), data)
    except (OSError, ValueError) as error:
        raise file_error(path, "written", error) from None


def _write(target: Path, data: bytes) -> None:
    """Write a file completely or not at all."""
    with tempfile.NamedTemporaryFile(dir=target.parent, prefix=target.name, delete=False) as file:
        try:
            file.write(data)
            file.flush()
            os.chmod(file.name, 0o644)
            os.replace(file.name, target)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise


def load_compiled(path: str | os.PathLike[str]) -> CompiledFile:
    """The kernel that `save` wrote, ready to be called.

    Raises ArtifactError, naming the file, for anything that `save` of this version did not write, FileNotFoundError,
    and OSError for a file that can't be read. A file holds machine code: load only files that you trust.
    """
    if not isinstance(path, (str, os.PathLike)) or "\0" in os.fspath(path):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ArgumentTypeError(f"load_compiled takes the path of a file, and was given {shown(path)}")
    try:
        compiled, _ = unpack(_read(path))
        if problem(compiled):
            raise ArtifactError(f"it holds no kernel that can be launched: {problem(compiled)}")
    except ArtifactError as error:
        raise ArtifactError(f"{os.fspath(path)} cannot be loaded: {error.fields['message']}") from None
    return CompiledFile(compiled)


def _read(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a regular file; a pipe or a device might never end."""
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0))
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise ArtifactError("it is no file")
            if status.st_size > _LARGEST:
                raise ArtifactError(f"it has {status.st_size} bytes")
            return file.read(_LARGEST)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        if isinstance(error, ArtifactError):
            raise
        raise file_error(path, "read", error) from None


@public
class CompiledFile:
    """A kernel compiled ahead of time. It runs arrays of the shapes and dtypes it was compiled for.

    `f(*args, out=None, stream=None, interpret=None)` takes what the kernel took when it was
    compiled. No llvmlite, ptxas or source is needed to call it.
    """

    def __init__(self, compiled: Assembled | CompiledKernel) -> None:
        self._compiled = compiled
        self.kernel: CompiledKernel = compiled.kernel if isinstance(compiled, Assembled) else compiled
        self._scalars = _scalar_dtypes(self.kernel)
        self._loaded: dict[Any, tuple[Device, Loaded]] = {}
        self._lock = forking.lock()
        self._fast = FastCalls()

    @property
    def name(self) -> str:
        return self.kernel.name

    @property
    def target(self) -> str:
        """The target's name, such as 'sm_90a'."""
        return self.kernel.target

    @property
    def ptx(self) -> str:
        return self.kernel.ptx

    @property
    def cubin(self) -> bytes:
        """Machine code; empty for a kernel that was saved without it."""
        return self._compiled.cubin if isinstance(self._compiled, Assembled) else b""

    @property
    def resources(self) -> Resources | None:
        """The assembler's report; None for a kernel that was saved without machine code."""
        return self._compiled.resources if isinstance(self._compiled, Assembled) else None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the kernel to another file."""
        save(self._compiled, path)

    @unguarded
    def __call__(self, *args: Any, out: Any = None, stream: Any = None, interpret: Any = None) -> Any:
        """Run the kernel; the result has the structure that `out_type` had."""
        if interpret is None:
            result = self._fast(args, out, stream)
            if result is not self._fast.miss:
                return result
        return recording.made(self._call, args, out, stream, interpret)

    @public
    def _call(self, args: Sequence[Any], out: Any, stream: Any, interpret: Any) -> Any:
        arrays, scalars, given, loaded = self._prepare(args, out, interpret)
        results = call(loaded, arrays, scalars, out=given, stream=stream)
        if interpret is None and recording.current() is None:
            tree = self.kernel.output_tree
            self._fast.learn(args, out, loaded, first if tree == 0 else partial(unflatten, tree))
        return unflatten(self.kernel.output_tree, results)

    def bind(self, *args: Any, out: Any = None, stream: Any = None, interpret: Any = None) -> Any:
        """Fix the arguments: `bound = f.bind(x)`, then `bound()` launches on the same arrays in the shortest host time."""
        arrays, scalars, given, loaded = self._prepare(args, out, interpret)
        tree = self.kernel.output_tree
        return bind(loaded, arrays, scalars, given, stream, lambda outs: unflatten(tree, outs))

    def _prepare(
        self, args: Sequence[Any], out: Any, interpret: Any
    ) -> tuple[list[Any], list[Any], list[Any] | None, Loaded]:
        arrays, scalars = self._sort(args)
        given = None if out is None else flatten(out)[0]
        return arrays, scalars, given, self._load(interpret, [*arrays, *(given or ())])

    def __repr__(self) -> str:
        shapes = ", ".join(
            f"{a.dtype}[{','.join(map(str, a.shape))}]" for a in self.kernel.arrays[: self.kernel.inputs]
        )
        return f"<compiled kernel {self.name}({shapes}) for {self.target}>"

    def _sort(self, args: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """The arrays and the scalars of a call, each in order."""
        leaves, _ = flatten(tuple(args))
        arrays = [leaf for leaf in leaves if is_array(leaf)]
        scalars = [leaf for leaf in leaves if not is_array(leaf)]
        if len(arrays) != self.kernel.inputs or len(scalars) < len(self._scalars):
            raise ArgumentTypeError(
                f"{self!r} takes {self.kernel.inputs} arrays and {len(self._scalars)} scalars, and "
                f"got {len(arrays)} and {len(scalars)}{where(self.kernel)}"
            )
        for index, (value, dtype) in enumerate(zip(scalars, self._scalars, strict=False)):
            if dtype is not None and not _fits(value, dtype):
                raise ArgumentTypeError(
                    f"scalar {index} of kernel {self.name!r} is {dtype}, and got {value!r} of type "
                    f"{type(value).__name__}{where(self.kernel)}"
                )
        return arrays, scalars

    def _load(self, interpret: Any, arrays: Sequence[Any]) -> Loaded:
        device = pick_device(interpret, [view(array) for array in arrays])
        key = (device.kind, device.index, getattr(device, "params", None))
        with self._lock:
            found = self._loaded.get(key)
            if found is None:
                # Machine code is for one architecture; for another GPU the driver compiles the PTX, if it can.
                here = device.kind != "cuda" or device.target.name == self.target
                found = self._loaded[key] = (device, device.load(self._compiled if here else self.kernel))
        return found[1]


def _scalar_dtypes(kernel: CompiledKernel) -> list[DType | None]:
    """For each scalar input, its dtype, or None if the kernel does not use it."""
    used = {p.scalar: p.dtype for p in kernel.params if isinstance(p, ScalarParam)}
    return [used.get(i) for i in range(max(used, default=-1) + 1)]


def _fits(value: Any, dtype: DType) -> bool:
    """Whether a scalar has the type that the kernel was compiled for."""
    if isinstance(value, np.generic):
        return cast("Any", value).dtype == dtype.numpy
    if isinstance(value, bool):
        return dtype.is_bool
    if isinstance(value, int):
        return dtype.is_integer
    return isinstance(value, float) and dtype.is_float
