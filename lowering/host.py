"""Host code: what launches a kernel without Python, as LLVM text made from a `CompiledKernel` and its `LaunchPlan`.

Its function `launch(stream, device, arrays, scalars, message)` does what the runtime does with the same
plan: fills, copies, zeroed workspaces, tensor maps, parameters, launch attributes. It finds the GPU's kernel, and `issue`, with
the kernel in the device's place, does the rest. Entries for C, XLA's FFI and tvm-ffi
(`host_entries.py`) bring their callers' arguments into its form. It needs libc and, at its first call, `libcuda.so.1`.

`arrays` are rows of two addresses: the data and, of arrays with any strides, the strides in elements (int64). Inputs are
first, then outputs, then workspaces. `scalars` are the addresses of the scalars' bytes. Functions give 0, a `CUresult`, or a
negative number of ours; whatever is not 0 has its text in `message`.
"""

from __future__ import annotations

import struct

import numpy as np

from kernel_dsl import tma
from kernel_dsl.compiled import (
    CompiledKernel,
    LaunchAttributes,
    OobFill,
    PointerParam,
    ScalarParam,
    ScratchMapParam,
    ShapeParam,
    StrideParam,
    Swizzle,
    TensorMapParam,
)
from kernel_dsl.errors import NoHostCode
from kernel_dsl.launch_plan import AnyParam, CopyStep, FillStep, LaunchPlan, MemoryStep, slot

from .host_writer import DRIVER, HostFunction, HostModule, Word, quoted
from .value import V

ROW = 16  # bytes of a row of `arrays`
BAD_ARGUMENT, NO_DRIVER = -1, -2
_NAME = max(map(len, DRIVER)) + 1  # bytes of a name in the table of symbols
_ALIGN = 64  # bytes: alignment of the buffer of parameters, which a CUtensorMap needs
_PLAIN_SMEM = 48 * 1024  # bytes of dynamic SMEM that a kernel may have without an attribute
_PORTABLE_CLUSTER = 8  # blocks
_NO_BINARY = 209  # CUDA_ERROR_NO_BINARY_FOR_GPU
_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
_SMEM, _NON_PORTABLE = 8, 14  # CUfunction_attribute
_CLUSTER_DIMENSION, _STREAM_SERIALIZATION = 4, 6  # CUlaunchAttributeID
_ATTRIBUTE = 72  # bytes of a CUlaunchAttribute: its id, 4 of padding, its value
# CUtensorMapDataType by the names of `tma.MAP_TYPES`
_MAP_TYPES = ["UINT8", "UINT16", "UINT32", "INT32", "UINT64", "INT64", "FLOAT16", "FLOAT32", "FLOAT64", "BFLOAT16"]
_SWIZZLES = (Swizzle.NONE, Swizzle.B32, Swizzle.B64, Swizzle.B128)
_PROMOTIONS = (0, 64, 128, 256)
_FILLS = (OobFill.ZEROS, OobFill.NAN)

_HEAD = """
declare ptr @dlopen(ptr, i32)
declare ptr @dlsym(ptr, ptr)
declare i32 @snprintf(ptr, i64, ptr, ...)
@kd.driver = internal global [{count} x ptr] zeroinitializer, align 8
@kd.driver.ready = internal global i32 0
@kd.kernel = internal global ptr null
@kd.devices = internal global i64 0
"""


class Host:
    """The host code of one kernel, while it is written. `code`: its cubin or PTX, or the address of that."""

    def __init__(self, kernel: CompiledKernel, plan: LaunchPlan, code: bytes | int) -> None:
        self.kernel = kernel
        self.plan = plan
        self.module: HostModule = HostModule()
        self._head = _HEAD.format(count=len(DRIVER))
        _check(plan)
        self._code(code)
        self._failed()
        self._driver_load()
        self._kernel_get()
        self._launch()

    def __str__(self) -> str:
        return f"{self._head}\n{self.module}"

    def _code(self, code: bytes | int) -> None:
        if isinstance(code, int):
            self.code: str = f"inttoptr (i64 {code} to ptr)"
        else:
            self.code = "@kd.code"
            self._head += f"@kd.code = private constant [{len(code) + 1} x i8] {quoted(code + bytes(1))}, align 16\n"

    # --- errors -----------------------------------------------------------------------------------

    def _failed(self) -> None:
        def body(f: HostFunction) -> None:
            text = f.room(8)
            f.write("ptr", self.module.text("an unknown error"), text)
            f.driver("cuGetErrorString", "i32 %code", f"ptr {text}")
            name = self.module.text(self.plan.name)
            target = self.kernel.target

            def foreign() -> None:
                words = f"%s was compiled for {target}, and its machine code does not run on this GPU: %s"
                f.say("%message", words, f"ptr {name}", f"ptr {f.load('ptr', text)}")
                f.do("ret i32 %code")

            f.leave_when(f.given("%code", "i32").equal(_NO_BINARY), foreign)
            words = "%s: %s: CUDA error %d (%s)"
            f.say("%message", words, f"ptr {name}", "ptr %what", "i32 %code", f"ptr {f.load('ptr', text)}")
            f.do("ret i32 %code")

        self.module.function("internal i32 @kd.failed(i32 %code, ptr %what, ptr %message)", body, "noinline ")

    def check(self, f: HostFunction, name: str, *arguments: str) -> None:
        """Call the driver, and return if that fails."""
        code = f.driver(name, *arguments)

        def leave() -> None:
            what = self.module.text(name.removesuffix("_v2"))
            f.do(f"ret i32 {f.v(f'call i32 @kd.failed(i32 {code}, ptr {what}, ptr %message)', 'i32')}")

        f.leave_when(code.differs(0), leave)

    @staticmethod
    def call(f: HostFunction, called: str) -> None:
        """Call one of the module's functions, and return its result if that is not 0."""
        code = f.v(f"call i32 {called}", "i32")
        f.leave_when(code.differs(0), lambda: f.do(f"ret i32 {code}"))

    # --- the driver and the kernel, each got once -------------------------------------------------

    def _driver_load(self) -> None:
        """Fill the table of the driver's functions. Two threads that do so at once write the same values."""

        def body(f: HostFunction) -> None:
            ready = f.v("load atomic i32, ptr @kd.driver.ready acquire, align 4", "i32")
            f.leave_when(ready.differs(0), lambda: f.do("ret i32 0"))
            library = f.v(f"call ptr @dlopen(ptr {self.module.text('libcuda.so.1')}, i32 2)", "ptr")
            name = self.module.text(self.plan.name)

            def missing() -> None:
                f.say("%message", "%s: there is no CUDA driver: libcuda.so.1 can't be loaded", f"ptr {name}")
                f.do(f"ret i32 {NO_DRIVER}")

            f.leave_when(library.equal("null"), missing)
            names = self.module.bytes(b"".join(symbol.encode().ljust(_NAME, b"\0") for symbol in DRIVER))
            with f.each(len(DRIVER)) as number:
                found = f.v(f"call ptr @dlsym(ptr {library}, ptr {f.after(names, number * _NAME)})", "ptr")
                f.write("ptr", found, "@kd.driver", number * 8)
            last = f.load("ptr", "@kd.driver", 8 * DRIVER.index("cuLibraryLoadData"))

            def old() -> None:
                f.say("%message", "%s: the CUDA driver is older than CUDA 12", f"ptr {name}")
                f.do(f"ret i32 {NO_DRIVER}")

            f.leave_when(last.equal("null"), old)
            f.do("store atomic i32 1, ptr @kd.driver.ready release, align 4")
            f.do("ret i32 0")

        self.module.function("internal i32 @kd.driver.load(ptr %message)", body, "noinline ")

    def _kernel_get(self) -> None:
        """The kernel, a `CUkernel` of all contexts.

        It is loaded immediately, so that no load happens while a stream is captured.
        """
        attributes = self.plan.launch.attributes if self.plan.launch else None

        def make(f: HostFunction) -> None:
            library, kernel = f.room(8), f.room(8)
            known = f.v("load atomic ptr, ptr @kd.kernel acquire, align 8", "ptr")
            f.write("ptr", known, kernel)
            with f.when(known.equal("null")):
                self.check(
                    f, "cuLibraryLoadData", f"ptr {library}", f"ptr {self.code}",
                    "ptr null", "ptr null", "i32 0", "ptr null", "ptr null", "i32 0",
                )  # fmt: skip
                entry = self.module.text(self.kernel.entry)
                self.check(f, "cuLibraryGetKernel", f"ptr {kernel}", f"ptr {f.load('ptr', library)}", f"ptr {entry}")
                made = f.load("ptr", kernel)
                pair = f.v(f"cmpxchg ptr @kd.kernel, ptr null, ptr {made} acq_rel acquire", "{ ptr, i1 }")
                with f.when(f.v(f"extractvalue {{ ptr, i1 }} {pair}, 1", "i1").equal("false")):
                    f.driver("cuLibraryUnload", f"ptr {f.load('ptr', library)}")  # another thread has loaded it first
                    f.write("ptr", f.v(f"extractvalue {{ ptr, i1 }} {pair}, 0", "ptr"), kernel)
            made = f.load("ptr", kernel)
            for key, value in _opt_in(attributes):
                self.check(f, "cuKernelSetAttribute", f"i32 {key}", f"i32 {value}", f"ptr {made}", "i32 %device")
            self.check(f, "cuKernelGetFunction", f"ptr {library}", f"ptr {made}")
            bit = f.i64(1) << _place(f)
            f.v(f"atomicrmw or ptr @kd.devices, i64 {bit} release", "i64")
            f.do("ret i32 0")

        def get(f: HostFunction) -> None:
            mode = f.room(4)
            f.write("i32", _RELAXED, mode)
            f.driver("cuThreadExchangeStreamCaptureMode", f"ptr {mode}")
            code = f.v("call i32 @kd.kernel.make(i32 %device, ptr %message)", "i32")
            f.driver("cuThreadExchangeStreamCaptureMode", f"ptr {mode}")
            f.do(f"ret i32 {code}")

        self.module.function("internal i32 @kd.kernel.make(i32 %device, ptr %message)", make, "noinline ")
        self.module.function("internal i32 @kd.kernel.get(i32 %device, ptr %message)", get, "noinline ")

    # --- a launch ---------------------------------------------------------------------------------

    def _launch(self) -> None:
        last = self.plan.launch

        def launch(f: HostFunction) -> None:
            kernel = "null"
            if last is not None:
                loaded = f.v("load atomic i64, ptr @kd.devices acquire, align 8", "i64")
                bit = loaded >> _place(f)
                with f.when((bit & 1).equal(0)):
                    self.call(f, "@kd.kernel.get(i32 %device, ptr %message)")
                kernel = f.v("load atomic ptr, ptr @kd.kernel acquire, align 8", "ptr")
            given = f"ptr %stream, ptr {kernel}, ptr %arrays, ptr %scalars, ptr %message"
            f.do(f"ret i32 {f.v(f'call i32 @kd.issue({given})', 'i32')}")

        def issue(f: HostFunction) -> None:
            for step in self.plan.steps:
                if isinstance(step, MemoryStep):
                    self._memory(f, step)
            if last is not None:
                self.issue(f, "%kernel")
            f.do("ret i32 0")

        shared = "ptr %arrays, ptr %scalars, ptr %message"
        self.module.function(f"internal i32 @kd.launch(ptr %stream, i32 %device, {shared})", launch)
        self.module.function(f"internal i32 @kd.issue(ptr %stream, ptr %kernel, {shared})", issue)

    @property
    def short(self) -> bool:
        """Whether a launch is one call of the driver with few instructions before it."""
        last = self.plan.launch
        if last is None or len(self.plan.steps) > 1 or self.plan.scratch:
            return False
        return all(isinstance(p, (PointerParam, ScalarParam, ShapeParam)) for p in last.params)

    def issue(self, f: HostFunction, kernel: str) -> None:
        """Launch `kernel` with the function's `%arrays`, or its `addresses`, and its `%scalars`."""
        last = self.plan.launch
        assert last is not None
        self._call_launch(f, last.attributes, kernel, self._parameters(f, last.params))

    def address(self, f: HostFunction, array: int) -> V:
        return f.addresses.get(array) or self.address_in(f, "%arrays", array)

    def address_in(self, f: HostFunction, rows: str, array: int) -> V:
        return f.word(rows, ROW * array)

    def extent(self, f: HostFunction, array: int, axis: int) -> Word:
        return self.plan.arrays[array].shape[axis]

    def stride(self, f: HostFunction, array: int, axis: int) -> Word:
        """In elements."""
        if not self.plan.arrays[array].contiguous:
            return f.word(f.pointer("%arrays", ROW * array + 8), 8 * axis)
        rank = len(self.plan.arrays[array].shape)
        return f.product(self.extent(f, array, k) for k in range(axis + 1, rank))

    def size(self, f: HostFunction, array: int) -> Word:
        """Bytes of an array."""
        if array >= len(self.plan.arrays):
            space = self.plan.scratch[array - len(self.plan.arrays)]
            return space.shape[0] * space.dtype.itemsize
        given = self.plan.arrays[array]
        return f.product(iter([given.dtype.itemsize, *(self.extent(f, array, k) for k in range(len(given.shape)))]))

    def _memory(self, f: HostFunction, step: MemoryStep) -> None:
        if isinstance(step, CopyStep):
            to, source = self.address(f, step.target), self.address(f, step.source)
            size = self.size(f, step.target)
            with f.when(to.differs(source)):
                self._sized(f, size, "cuMemcpyDtoDAsync_v2", f"i64 {to}", f"i64 {source}", f"i64 {size}")
            return
        filled = isinstance(step, FillStep)
        dtype = self.plan.arrays[step.array].dtype if filled else None
        pattern = b"\0" if dtype is None else _pattern(step.value, dtype.numpy) if filled else b"\0"
        size, to = self.size(f, step.array), self.address(f, step.array)
        if len(pattern) <= 4:
            bits = 8 * len(pattern)
            count, number = f.div(size, len(pattern)), int.from_bytes(pattern, "little")
            self._sized(f, size, f"cuMemsetD{bits}Async", f"i64 {to}", f"i{bits} {number}", f"i64 {count}")
            return
        for at in range(0, len(pattern), 4):  # 8-byte elements: low and high words, each a strided fill
            number, count = int.from_bytes(pattern[at : at + 4], "little"), f.div(size, len(pattern))
            where = (f"i64 {f.add(to, at)}", f"i64 {len(pattern)}", f"i32 {number}", "i64 1", f"i64 {count}")
            self._sized(f, size, "cuMemsetD2D32Async", *where)

    def _sized(self, f: HostFunction, size: Word, name: str, *arguments: str) -> None:
        """A call on memory, left out if the size is 0."""
        if isinstance(size, int):
            if size:
                self.check(f, name, *arguments, "ptr %stream")
            return
        with f.when(size.differs(0)):
            self.check(f, name, *arguments, "ptr %stream")

    def _parameters(self, f: HostFunction, params: tuple[AnyParam, ...]) -> str:
        """The `void *[]` of a launch's parameters."""
        pointers = f.room(8 * len(params))
        buffer = f.room(sum(slot(p)[0] + slot(p)[1] for p in params), 16 if self.short else _ALIGN)
        end = 0
        for number, param in enumerate(params):
            size, alignment = slot(param)
            end = -(-end // alignment) * alignment
            place = f.after(buffer, end)
            if isinstance(param, ScalarParam):
                place = f.pointer("%scalars", 8 * param.scalar)  # where the caller has it
            elif isinstance(param, PointerParam):
                f.write("i64", self.address(f, param.array), place)
            elif isinstance(param, ShapeParam):
                f.write("i64", self.extent(f, param.array, param.axis), place)
            elif isinstance(param, StrideParam):
                f.write("i64", self.stride(f, param.array, param.axis), place)
            elif isinstance(param, TensorMapParam):
                self._tensor_map(f, param, place)
            else:
                raise NoHostCode(
                    kernel=self.plan.name,
                    what=f"a parameter of kind {type(param).__name__}",
                    hint="call it from Python",
                )
            f.write("ptr", place, pointers, 8 * number)
            end += size
        return pointers

    def _tensor_map(self, f: HostFunction, param: TensorMapParam, place: str) -> None:
        sizes: list[Word]
        if isinstance(param, ScratchMapParam):
            sizes = [n for n, _ in param.sizes]
        else:
            sizes = [self.extent(f, param.array, k) for k in range(len(self.plan.arrays[param.array].shape))]
        if 0 in sizes:  # nothing is copied from an array without elements
            for word in range(16):
                f.write("i64", 0, place, 8 * word)
            return
        extents, steps, start = self._dimensions(f, param, sizes)
        item, rank = param.dtype.itemsize, len(extents)
        dims, strides = f.room(8 * rank), f.room(8 * max(rank - 1, 1))
        gapless: Word = f.mul(extents[-1], item)
        f.write("i64", extents[-1], dims)
        for k, (extent, step) in enumerate(zip(reversed(extents[:-1]), reversed(steps[:-1]), strict=True)):
            # the stride of an axis of extent 1 is never used, so any legal one will do
            used = not isinstance(extent, int) or extent > 1
            stride = f.mul(step, item) if used else f.mul(f.div(f.add(gapless, tma.UNIT - 1), tma.UNIT), tma.UNIT)
            f.write("i64", extent, dims, 8 * (k + 1))
            f.write("i64", stride, strides, 8 * k)
            gapless = f.mul(stride, extent)
        if rank == 1:
            f.write("i64", 0, strides)
        address = f.value(f.add(self.address(f, param.array), f.mul(start, item)), "i64").to("inttoptr", "ptr")
        box = self.module.words(tuple(reversed(param.box)), 32)
        ones = self.module.words((1,) * rank, 32)
        self.check(
            f, "cuTensorMapEncodeTiled", f"ptr {place}",
            f"i32 {_MAP_TYPES.index(tma.MAP_TYPES[param.dtype.name])}", f"i32 {rank}",
            f"ptr {address}", f"ptr {dims}", f"ptr {strides}", f"ptr {box}", f"ptr {ones}",
            "i32 0", f"i32 {_SWIZZLES.index(param.swizzle)}", f"i32 {_PROMOTIONS.index(param.l2_promotion)}",
            f"i32 {_FILLS.index(param.oob_fill)}",
        )  # fmt: skip

    def _dimensions(
        self, f: HostFunction, param: TensorMapParam, sizes: list[Word]
    ) -> tuple[list[Word], list[Word], Word]:
        """Extents and strides, in elements, of a tensor map's dimensions, outermost first; and its first element."""
        split, window = dict(param.split), {axis: (low, high) for axis, low, high in param.window}
        extents: list[Word] = []
        steps: list[Word] = []
        start: Word = 0
        for axis in param.axes if param.axes is not None else range(len(sizes)):
            extent = sizes[axis]
            own = isinstance(param, ScratchMapParam)
            step = param.sizes[axis][1] if own else self.stride(f, param.array, axis)
            if axis in window:
                low, high = window[axis]
                extent, start = high - low, f.add(start, f.mul(step, low))
            factor = split.get(axis)
            extents += [extent] if factor is None else [f.div(extent, factor), factor]
            steps += [step] if factor is None else [f.mul(step, factor), step]
        return extents, steps, start

    def _call_launch(self, f: HostFunction, launch: LaunchAttributes, kernel: str, pointers: str) -> None:
        attributes = b""
        if launch.cluster != (1, 1, 1):
            attributes += struct.pack("<2I3I52x", _CLUSTER_DIMENSION, 0, *launch.cluster)
        if launch.programmatic_dependent_launch:
            attributes += struct.pack("<3I60x", _STREAM_SERIALIZATION, 0, 1)
        config = f.room(56)  # a CUlaunchConfig: seven numbers, the stream, the attributes and their number
        numbers = struct.pack("<7I4x", *launch.grid, *launch.block, launch.dynamic_smem)
        for k, word in enumerate(struct.unpack("<4Q", numbers)):
            f.write("i64", word, config, 8 * k)
        f.write("ptr", "%stream", config, 32)
        f.write("ptr", self.module.bytes(attributes) if attributes else "null", config, 40)
        f.write("i64", len(attributes) // _ATTRIBUTE, config, 48)
        # in a loop, this function of the driver takes 30 ns less than cuLaunchKernel
        self.check(f, "cuLaunchKernelEx", f"ptr {config}", f"ptr {kernel}", f"ptr {pointers}", "ptr null")


def _place(f: HostFunction) -> V:
    """The GPU's bit in `@kd.devices`."""
    return (f.given("%device", "i32") & 63).zext("i64")


def _check(plan: LaunchPlan) -> None:
    """Raise `NoHostCode` for a plan with steps that host code can't do."""
    for step in plan.steps:
        if isinstance(step, MemoryStep):
            touched = [step.target, step.source] if isinstance(step, CopyStep) else [step.array]
            for array in touched:
                if array < len(plan.arrays) and not plan.arrays[array].contiguous:
                    what = f"{plan.arrays[array].name!r} is filled or copied, and not row-major"
                    raise NoHostCode(kernel=plan.name, what=what, hint="lower it for row-major arrays")
            if isinstance(step, FillStep) and isinstance(step.value, ScalarParam):
                raise NoHostCode(
                    kernel=plan.name, what="an output is filled with a scalar of the call", hint="fill it with a number"
                )


def _opt_in(launch: LaunchAttributes | None) -> list[tuple[int, int]]:
    """Attributes, with their values, that a kernel must set before its launch."""
    if launch is None:
        return []
    cluster = launch.cluster[0] * launch.cluster[1] * launch.cluster[2]
    wanted = [(_SMEM, launch.dynamic_smem)] * (launch.dynamic_smem > _PLAIN_SMEM)
    return wanted + [(_NON_PORTABLE, 1)] * (cluster > _PORTABLE_CLUSTER)


def _pattern(value: object, dtype: np.dtype[np.generic]) -> bytes:
    """The bytes that a fill repeats: one byte if all bytes of an element are equal."""
    with np.errstate(over="ignore", invalid="ignore"):
        data = np.asarray(value).astype(dtype).tobytes()
    return data[:1] if len(set(data)) == 1 else data
