"""Entries of host code: the C function on DLTensors, and the handler of XLA's foreign function interface.

Layouts are those of `dlpack.h` (version 1), and of `xla/ffi/api/c_api.h`: a test compiles a caller against each header.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from kernel_dsl.dtypes import DType
from kernel_dsl.launch_plan import LaunchPlan

from .host import BAD_ARGUMENT, ROW, Host
from .host_arrays import add_array_check, check_array
from .host_repeated import KNOWN, Repeated, remember
from .host_writer import MESSAGE, HostFunction, Word
from .value import V

_C_TYPES = {"bool": "bool", "float32": "float", "float64": "double"}
_LLVM_TYPES = {"float32": "float", "float64": "double"}
# of C and C++, and what the header and <errno.h>, <stdio.h> and compilers define
_WORDS = """
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t char32_t class co_await
    co_return co_yield compl concept const const_cast consteval constexpr constinit continue decltype default delete do
    double dynamic_cast else enum explicit export extern false float for friend goto if inline int long mutable namespace
    new noexcept not not_eq nullptr operator or or_eq private protected public register reinterpret_cast requires restrict
    return short signed sizeof static static_assert static_cast struct switch template this thread_local throw true try
    typedef typeid typename typeof typeof_unqual union unsigned using virtual void volatile wchar_t while xor xor_eq
    _Alignas _Alignof _Atomic _BitInt _Bool _Complex _Generic _Imaginary _Noreturn _Static_assert _Thread_local
    CUstream DLDataType DLDevice DLTensor EOF NULL errno linux main stderr stdin stdout stream unix
"""
C_WORDS = frozenset(_WORDS.split())


@dataclass(frozen=True)
class HostArgument:
    """An argument of a kernel: an array or a scalar, by its number. Outputs are arrays after the inputs."""

    name: str
    dtype: DType
    array: int | None = None
    scalar: int | None = None


def c_names(arguments: Sequence[HostArgument]) -> list[str]:
    """The arguments' names in C."""
    names: list[str] = []
    for argument in arguments:
        plain = argument.name.removesuffix("_ref").removesuffix("_gmem") or argument.name
        name = re.sub(r"\W", "_", plain, flags=re.ASCII)
        name = f"{name}_" if name in C_WORDS or not name or name[0].isdigit() else name
        while name in names:
            name += "_"
        names.append(name)
    return names


def c_type(dtype: DType) -> str:
    """A scalar's type in C. A dtype without a type in C is passed as its bits."""
    if dtype.name in _C_TYPES:
        return _C_TYPES[dtype.name]
    return f"int{dtype.bits}_t" if dtype.is_signed else f"uint{dtype.bits}_t"


def scalar_type(dtype: DType) -> str:
    """A scalar's type in LLVM text."""
    return _LLVM_TYPES.get(dtype.name, f"i{dtype.bits}")


def add_c_entry(host: Host, symbol: str, arguments: Sequence[HostArgument]) -> None:
    """`int SYMBOL(CUstream, const DLTensor *...)`, scalars by value, and `const char *SYMBOL_error(void)`."""
    size = MESSAGE + KNOWN  # the text, and what the thread knows of its last call
    host.module.parts.append(f"@kd.message = internal thread_local global [{size} x i8] zeroinitializer, align 16")
    host.module.parts.append("declare ptr @llvm.threadlocal.address.p0(ptr)")
    types = ["ptr" if a.scalar is None else scalar_type(a.dtype) for a in arguments]
    names = c_names(arguments)

    listed = "".join(f", {type} %a{k}" for k, type in enumerate(types))
    arrays = {a.array: f"%a{k}" for k, a in enumerate(arguments) if a.array is not None}

    def scalars(f: HostFunction) -> str:
        """The addresses of the scalars' bytes."""
        made = f.room(8 * (len(arguments) - len(arrays)))
        for number, (argument, type) in enumerate(zip(arguments, types, strict=True)):
            if argument.scalar is not None:
                place = f.room(16, 16)
                f.write(type, f"%a{number}", place)
                f.write("ptr", place, made, 8 * argument.scalar)
        return made

    def whole(f: HostFunction) -> None:
        entry = Checked(host, f)
        for number, argument in enumerate(arguments):
            if argument.array is not None:
                entry.array(argument.array, f"%a{number}", names[number])
        entry.apart([names[k] for k, a in enumerate(arguments) if a.array is not None])
        device = entry.device()
        code = with_workspaces(host, f, f"@kd.launch(ptr %stream, i32 {device}", entry.rows, scalars(f))
        with f.when(code.equal(0)):
            remember(host, f, device)
        f.do(f"ret i32 {code}")

    def body(f: HostFunction) -> None:
        f.do("%message = call ptr @llvm.threadlocal.address.p0(ptr @kd.message)")
        f.write("i8", 0, "%message")
        again = Repeated(host, f, arrays)
        kernel = again.check()
        if host.short:
            f.addresses = again.addresses
            f.do(f"%scalars = getelementptr i8, ptr {scalars(f)}, i64 0")
            host.issue(f, kernel)
            f.do("ret i32 0")
        else:
            code = with_workspaces(host, f, f"@kd.issue(ptr %stream, ptr {kernel}", again.rows(), scalars(f))
            f.do(f"ret i32 {code}")
        f.begin(again.other)
        f.do(f"ret i32 {f.v(f'call i32 @kd.called(ptr %stream{listed}, ptr %message)', 'i32')}")

    host.module.function(f"internal i32 @kd.called(ptr %stream{listed}, ptr %message)", whole, "noinline ")
    host.module.function(f"i32 @{symbol}(ptr %stream{listed})", body)
    host.module.function(
        f"ptr @{symbol}_error()",
        lambda f: f.do(f"ret ptr {f.v('call ptr @llvm.threadlocal.address.p0(ptr @kd.message)', 'ptr')}"),
    )


class Checked:
    """The arguments of a launch, checked and put into rows."""

    def __init__(self, host: Host, f: HostFunction) -> None:
        self.host: Host = host
        self.f: HostFunction = f
        self.plan: LaunchPlan = host.plan
        self.rows: str = f.room(ROW * (len(self.plan.arrays) + len(self.plan.scratch)))
        self.first: str | None = None  # the DLTensor that names the GPU
        self.first_name: str = ""
        if self.plan.arrays:
            add_array_check(host)

    def refuse(self, condition: V, words: str, *values: str) -> None:
        """Return with an error if the i1 `condition` holds."""
        name = self.plan.name.replace("%", "%%")
        self.f.refuse(condition, BAD_ARGUMENT, f"{name}: {words}", *values)

    def array(self, number: int, tensor: str, name: str) -> None:
        if self.first is None:
            self.first, self.first_name = tensor, name
        row = self.f.after(self.rows, ROW * number)
        check_array(self.host, self.f, number, tensor, name, row, (self.first, self.first_name))

    def apart(self, names: Sequence[str]) -> None:
        """Check that written memory overlaps with no other array, unless the kernel was compiled for that."""
        f = self.f
        for i, j in self.plan.pairs:
            a, b = self.plan.arrays[i], self.plan.arrays[j]
            if not (a.contiguous and b.contiguous) or 0 in a.shape or 0 in b.shape:
                continue
            p, q = self.host.address_in(f, self.rows, i), self.host.address_in(f, self.rows, j)
            ends = [f.add(p, self.host.size(f, i)), f.add(q, self.host.size(f, j))]
            before = p.below(ends[1])
            overlap = before & q.below(ends[0])
            if (i, j) in self.plan.shared:
                overlap = overlap & p.differs(q)
            self.refuse(overlap, f"{names[i]} and {names[j]} overlap in memory, and the kernel writes one of them")

    def device(self) -> str:
        """The GPU of the current context, which must have the arrays.

        A thread without a context gets the primary one.
        """
        f, host = self.f, self.host
        host.call(f, "@kd.driver.load(ptr %message)")
        device = f.room(4)
        code = f.driver("cuCtxGetDevice", f"ptr {device}")
        with f.when(code.differs(0)):  # no context; later calls report other errors
            context = f.room(8)
            where = "0" if self.first is None else f.load("i32", self.first, 12)
            host.check(f, "cuDevicePrimaryCtxRetain", f"ptr {context}", f"i32 {where}")
            host.check(f, "cuCtxSetCurrent", f"ptr {f.load('ptr', context)}")
            host.check(f, "cuCtxGetDevice", f"ptr {device}")
        now = f.load("i32", device)
        if self.first is not None:
            where = f.load("i32", self.first, 12)
            words = f"{self.first_name} is on GPU %d, and the current context is that of GPU %d"
            self.refuse(where.differs(now), words, f"i32 {where}", f"i32 {now}")
        return now


def with_workspaces(host: Host, f: HostFunction, called: str, rows: str, scalars: str) -> V:
    """Allocate workspaces, launch, and release them, in the order of the stream. Returns the launch's result.

    `called` is the function that launches, with its first arguments.
    """
    launch = f"{called}, ptr {rows}, ptr {scalars}, ptr %message)"
    if not host.plan.scratch:
        return f.v(f"call i32 {launch}", "i32")
    arrays = len(host.plan.arrays)
    total, offsets = 0, list[int]()
    for space in host.plan.scratch:  # one allocation, as each is a call of the driver
        total = -(-total // space.alignment) * space.alignment
        offsets.append(total)
        total += -(-space.shape[0] * space.dtype.itemsize // 4) * 4
    memory = f.room(8)
    host.check(f, "cuMemAllocAsync", f"ptr {memory}", f"i64 {max(total, 4)}", "ptr %stream")
    base = f.word(memory, 0)
    for number, offset in enumerate(offsets):
        f.write("i64", f.add(base, offset), rows, ROW * (arrays + number))
    code = f.v(f"call i32 {launch}", "i32")
    freed = f.driver("cuMemFreeAsync", f"i64 {base}", "ptr %stream")
    return code.equal(0).where(freed, code, "i32")


# --- XLA ------------------------------------------------------------------------------------------

FFI = "xla_ffi_handler"
SCALAR = 16  # bytes for a scalar in the attribute `scalars`
_METADATA = 1  # XLA_FFI_Extension_Metadata
_COMMAND_BUFFER_COMPATIBLE = 1
_INTERNAL = 13  # XLA_FFI_Error_Code


def add_ffi_entry(host: Host, scalars: int) -> None:
    """The handler `FFI`, whose operands are the array inputs, and whose results the outputs and then the workspaces.

    A workspace is longer by its alignment, which XLA does not promise. `scalars`: their number; the attribute `scalars`
    holds their bytes, each at a multiple of `SCALAR`.
    """
    plan = host.plan
    results = len(plan.arrays) - plan.inputs + len(plan.scratch)

    def launch(f: HostFunction) -> None:
        got = f.room(32)
        for offset, type, value in ((0, "i64", "32"), (8, "ptr", "null"), (16, "ptr", f.pointer("%frame", 24))):
            f.write(type, value, got, offset)
        f.write("ptr", "null", got, 24)
        refused = f.v(f"call ptr {f.pointer(f.pointer('%frame', 16), 80)}(ptr {got})", "ptr")  # XLA_FFI_Stream_Get
        f.write("ptr", refused, "%error")
        f.leave_when(refused.differs("null"), lambda: f.do(f"ret i32 {BAD_ARGUMENT}"))
        f.do(f"%stream = load ptr, ptr {f.after(got, 24)}, align 8")
        rows = f.room(ROW * (plan.inputs + results))
        row = 0
        for at, count in ((56, plan.inputs), (96, results)):
            has = f.word("%frame", at)
            what, name = "operands" if at == 56 else "results", plan.name.replace("%", "%%")
            words = f"{name}: %lld {what}, and the kernel has {count}"
            f.refuse(has.differs(count), BAD_ARGUMENT, words, f"i64 {has}")
            buffers = f.pointer("%frame", at + 16)
            for number in range(count):
                buffer = f.pointer(buffers, 8 * number)
                address: Word = f.word(buffer, 24)
                if row >= len(plan.arrays):
                    most = plan.scratch[row - len(plan.arrays)].alignment - 1
                    address = f.add(address, most) & (~most)
                f.write("i64", address, rows, ROW * row)
                row += 1
        places = f.room(8 * scalars)
        if scalars:
            data = f.pointer(f.pointer(f.pointer("%frame", 160), 0), 16)
            for number in range(scalars):
                f.write("ptr", f.after(data, SCALAR * number), places, 8 * number)
        host.call(f, "@kd.driver.load(ptr %message)")
        context, device = f.room(8), f.room(4)
        host.check(f, "cuStreamGetCtx", "ptr %stream", f"ptr {context}")
        host.check(f, "cuCtxPushCurrent_v2", f"ptr {f.load('ptr', context)}")
        f.driver("cuCtxGetDevice", f"ptr {device}")
        where = f.load("i32", device)
        code = f.v(f"call i32 @kd.launch(ptr %stream, i32 {where}, ptr {rows}, ptr {places}, ptr %message)", "i32")
        f.driver("cuCtxPopCurrent_v2", f"ptr {context}")
        f.do(f"ret i32 {code}")

    def handle(f: HostFunction) -> None:
        api, extension = f.pointer("%frame", 16), f.pointer("%frame", 8)
        f.leave_when(extension.differs("null"), lambda: _describe(f, api, extension))
        message, error = f.room(MESSAGE), f.room(8)
        f.write("i8", 0, message)
        f.write("ptr", "null", error)
        code = f.v(f"call i32 @kd.ffi.launch(ptr %frame, ptr {message}, ptr {error})", "i32")
        f.leave_when(code.equal(0), lambda: f.do("ret ptr null"))
        made = f.load("ptr", error)
        f.leave_when(made.differs("null"), lambda: f.do(f"ret ptr {made}"))
        given = f.room(32)
        f.write("i64", 28, given)
        f.write("ptr", "null", given, 8)
        f.write("ptr", message, given, 16)
        f.write("i32", _INTERNAL, given, 24)
        f.do(f"ret ptr {f.v(f'call ptr {f.pointer(api, 48)}(ptr {given})', 'ptr')}")  # XLA_FFI_Error_Create

    host.module.function("internal i32 @kd.ffi.launch(ptr %frame, ptr %message, ptr %error)", launch)
    host.module.function(f"ptr @{FFI}(ptr %frame)", handle)


def _describe(f: HostFunction, api: str, extension: str) -> None:
    """Answer XLA's question for metadata at the registration: the version of the interface, which is XLA's own."""
    with f.when(f.load("i32", extension, 8).equal(_METADATA)):
        metadata = f.pointer(extension, 24)
        f.write("i64", f.word(api, 32), metadata, 24)
        f.write("i32", _COMMAND_BUFFER_COMPATIBLE, metadata, 32)
    f.do("ret ptr null")
