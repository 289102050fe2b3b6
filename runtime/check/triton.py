"""`kd.check.triton()`: Triton's own launches in the interpreter. Triton compiles to PTX as it always does; no GPU is asked.

Inside the context Triton sees a device of ours: its target is the one that was named, it has no streams, and launching on it
is a check of the PTX. What Triton kept of other devices stays as it was.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import numpy as np

from kernel_dsl.compiled import OobFill, Swizzle, TensorMapParam
from kernel_dsl.dtypes import bfloat16
from kernel_dsl.target import Target

from ..arrays.array_view import view
from ..errors import ArgumentTypeError, DeviceError
from ..interpreter import parse
from .launches import Call, entry_of, target_named
from .report import Hazard, Report
from .run import check_calls
from .schedules import as_kinds, as_schedules, settings
from .tensor_maps import TensorMapArgument, im2col_map

# by Triton's name: NumPy's dtype of a value that is passed by value
_SCALARS = {
    "i1": "int8", "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64", "u1": "uint8", "u8": "uint8", "u16": "uint16",
    "u32": "uint32", "u64": "uint64", "fp16": "float16", "fp32": "float32", "f32": "float32", "fp64": "float64",
}  # fmt: skip
_BEFORE = 6  # a launcher's parameters before the arguments: stream, function, its metadata twice, two hooks
_SWIZZLES = (Swizzle.NONE, Swizzle.B32, Swizzle.B64, Swizzle.B128)


class TritonLaunches:
    """The value of `kd.check.triton()`: `reports`, one for each launch, in order."""

    def __init__(self, target: Target, schedules: Any, ignore: Any, step_budget: int | None) -> None:
        self.target = target
        self.step_budget = step_budget
        self.schedules = schedules
        self.ignore = ignore
        self.reports: list[Report] = []

    @property
    def hazards(self) -> list[Hazard]:
        """The hazards of all launches."""
        return [h for report in self.reports for h in report.hazards]

    def raise_for_hazards(self) -> None:
        """Raise `HazardError` for the first hazard of the first launch that has one."""
        for report in self.reports:
            report.raise_for_hazards()


def launches(
    target: Any, schedules: Any, ignore: Any, step_budget: int | None
) -> AbstractContextManager[TritonLaunches]:
    """The context. Raises DeviceError if Triton is not installed, and the errors of its arguments, all before it begins."""
    device = target_named(target)
    as_schedules(schedules)
    settings(("eager", 0), step_budget, as_kinds(ignore))
    made = TritonLaunches(device, schedules, ignore, step_budget)
    try:
        parts = _Triton(made)
    except ImportError as error:
        what = f"Triton is not installed, or is a version that has no {error.name}: pip install triton"
        raise DeviceError(what) from None
    return _within(parts, made)


@contextmanager
def _within(parts: _Triton, made: TritonLaunches) -> Generator[TritonLaunches]:
    with parts.patched():
        yield made


class _Array:
    """A NumPy array in the form that Triton takes: an address and a dtype."""

    def __init__(self, array: Any) -> None:
        self.array = array
        self.dtype = array.dtype
        self.shape = array.shape

    def data_ptr(self) -> int:
        return self.array.__array_interface__["data"][0]

    def stride(self) -> tuple[int, ...]:
        return tuple(s // self.array.itemsize for s in self.array.strides)

    def numel(self) -> int:
        return self.array.size

    def element_size(self) -> int:
        return self.array.itemsize


class _Triton:
    """The parts of Triton that launch kernels, and their replacements."""

    def __init__(self, made: TritonLaunches) -> None:
        self.made = made
        self.runtime = import_module("triton.runtime.driver").driver
        self.jit = import_module("triton.runtime.jit").JITFunction
        self.compiled = import_module("triton.compiler.compiler").CompiledKernel
        self.allocator = import_module("triton.runtime._allocation")
        self.gpu = import_module("triton.backends.compiler").GPUTarget

    @contextmanager
    def patched(self) -> Generator[None]:
        """Make our driver Triton's in the context."""
        before, run, init = self.runtime._active, self.jit.run, self.compiled._init_handles
        launcher = self.launcher

        def wrapped(function: Any, *args: Any, **keywords: Any) -> Any:
            given = [_wrapped(a) for a in args]
            return run(function, *given, **{k: _wrapped(v) for k, v in keywords.items()})

        def handles(kernel: Any) -> None:
            kernel._run = launcher(kernel)
            kernel.n_regs = kernel.n_spills = 0
            kernel.n_max_threads = 1024

        self.runtime._active, self.jit.run, self.compiled._init_handles = self.driver(), wrapped, handles
        try:
            yield
        finally:
            self.runtime._active, self.jit.run, self.compiled._init_handles = before, run, init

    def driver(self) -> Any:
        """A device that Triton compiles for. Its name separates its compiled kernels from those of GPUs."""
        target = self.made.target
        number = int("".join(c for c in target.name if c.isdigit()))
        limits = target.limits
        properties = {
            "max_shared_mem": limits.smem_per_block,
            "max_num_regs": limits.registers_per_multiprocessor,
            "multiprocessor_count": limits.multiprocessors,
            "warpSize": 32,
            "sm_clock_rate": 1,
            "mem_clock_rate": 1,
            "mem_bus_width": 1,
        }
        return SimpleNamespace(
            get_current_device=lambda: f"kernel_dsl {target.name}",
            set_current_device=lambda _: None,
            get_current_stream=lambda _: 0,
            get_device_capability=lambda _: divmod(number, 10),
            get_current_target=lambda: self.gpu("cuda", number, 32),
            get_active_torch_device=lambda: "cpu",
            get_benchmarker=lambda: _once,
            get_empty_cache_for_benchmark=lambda: None,
            clear_cache=lambda _: None,
            map_python_to_cpp_type=lambda text: text,
            utils=SimpleNamespace(get_device_properties=lambda _: properties, unload_module=lambda _: None),
        )

    def launcher(self, kernel: Any) -> Any:
        """The function that Triton calls to launch a compiled kernel."""
        metadata, signature = kernel.metadata, dict(kernel.src.signature)
        ptx = kernel.asm["ptx"]
        threads = parse_block(ptx, metadata)

        def run(x: int, y: int, z: int, *args: Any) -> None:
            clusters = metadata.num_ctas
            count = x * y * z * clusters
            maps = iter(getattr(metadata, "tensordesc_meta", None) or ())
            named = zip(signature.items(), args[_BEFORE:], strict=False)
            flat = [(name, value) for (name, kind), a in named for value in self.flat(kind, a, maps)]
            scratch = [(w, _scratch(getattr(metadata, f"{w}_scratch_size", 0) * count)) for w in ("global", "profile")]
            flat += [(f"{word} scratch", array) for word, array in scratch]
            given = [a for _, a in flat]
            module = parse(ptx)
            entry = entry_of(module, metadata.name)
            call = Call(
                ptx, given[: len(entry.params)], (x * clusters, y, z), threads, (clusters, 1, 1), metadata.shared,
                metadata.name, module.target, names=[name for name, _ in flat],
            )  # fmt: skip
            self.made.reports.append(check_calls([call], self.made.schedules, self.made.ignore, self.made.step_budget))

        return run

    def flat(self, kind: Any, value: Any, maps: Iterator[Any]) -> list[Any]:
        """A value of Triton's signature as parameters: none for constants, several for tuples and tensor descriptors.

        `maps` gives the tensor map of each descriptor in turn; none where the kernel takes descriptors apart.
        """
        if isinstance(kind, tuple):
            return [x for k, v in zip(kind, value, strict=True) for x in self.flat(k, v, maps)]
        if not kind.startswith("tensordesc"):
            return _one(kind, value)
        metadata = next(maps, None)
        if metadata is None:
            flags = [value.padding == "nan"]
            if hasattr(value, "round_f32_to_tf32"):  # from Triton 3.7 on
                flags.append(value.round_f32_to_tf32)
            first = [_plain(value.base), *map(np.int64, (*value.shape, *value.strides)), *map(np.int8, flags)]
        else:
            first = [self.tensor_map(value, metadata)]
        return [*first, *map(np.int32, value.shape), *map(np.int64, value.strides)]

    @staticmethod
    def tensor_map(arg: Any, metadata: Any) -> TensorMapArgument:
        """The tensor map of a host-side descriptor."""
        if metadata.get("fp4_padded"):
            raise ArgumentTypeError("fp4 tensor descriptors are not among those that a check knows")
        base = _plain(arg.base)
        seen = view(base)
        shaped = np.lib.stride_tricks.as_strided(
            _host(base), tuple(arg.shape), tuple(s * seen.dtype.itemsize for s in arg.strides)
        )
        if metadata.get("is_im2col"):
            pixels, channels = metadata["block_size"]
            columns = im2col_map(
                shaped, pixels, channels, arg.pixel_box_lower_corner, arg.pixel_box_upper_corner,
                1 if arg.element_strides is None else arg.element_strides[1:-1], _SWIZZLES[metadata["swizzle"]].value,
                arg.padding == "nan",
            )  # fmt: skip
            return columns
        fill = OobFill.NAN if arg.padding == "nan" else OobFill.ZEROS
        recipe = TensorMapParam(0, seen.dtype, tuple(metadata["block_size"]), _SWIZZLES[metadata["swizzle"]], fill)
        return TensorMapArgument(shaped, recipe)


def parse_block(ptx: str, metadata: Any) -> int:
    """Threads of a block: warp-specialised kernels have more warps than the caller asked for."""
    found = entry_of(parse(ptx), metadata.name).directives.get("reqntid")
    return found[0] if found else metadata.num_warps * 32


def _once(call: Any, **_: Any) -> list[float]:
    """A benchmark for Triton's autotuner: each candidate runs once, and all have equal times."""
    call()
    return [0.0, 0.0, 0.0]


def _wrapped(value: Any) -> Any:
    return _Array(value) if isinstance(value, np.ndarray) else value


def _plain(value: Any) -> Any:
    """The array that Triton received: ours, or one in Triton's own wrapper (`triton.reinterpret`)."""
    while isinstance(value, _Array) or type(value).__name__ == "TensorWrapper":
        value = value.array if isinstance(value, _Array) else value.base
    return value


def _host(array: Any) -> Any:
    from ..devices.memory import host_array

    return array if isinstance(array, np.ndarray) else host_array(view(array))


def _scratch(size: int) -> Any:
    return np.zeros(size, np.uint8) if size else None


def _one(kind: str, value: Any) -> list[Any]:
    """An array or a number of Triton's signature as a parameter; none for a constant."""
    if kind == "constexpr":
        return []
    value = _plain(value)
    if kind[0] == "*":
        if isinstance(value, int):
            raise ArgumentTypeError("a pointer that is given as a number points nowhere on the CPU; give an array")
        return [value]
    if value is None:
        return [value]
    if kind == "bf16":
        return [np.asarray(value, np.float32).astype(bfloat16.numpy)[()]]
    if kind not in _SCALARS:
        raise ArgumentTypeError(f"an argument of Triton's type {kind} is not one that a check knows")
    with np.errstate(over="ignore"):
        return [np.array(value).astype(_SCALARS[kind])[()]]
