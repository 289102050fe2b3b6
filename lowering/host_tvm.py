"""The entry of host code in the packed-function ABI of tvm-ffi: `int __tvm_ffi_NAME(handle, args, count, result)`.

Each of `args` has 16 bytes: its kind as an int32, and its value from byte 8 on. Tensors are DLTensors, or objects with a DLTensor
behind their header. The stream is tvm-ffi's for their GPU. Nothing is linked: the first call finds tvm-ffi's own functions in
the library that the caller has loaded. Numbers are those of `tvm/ffi/c_api.h`.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernel_dsl.errors import NoHostCode

from .host import Host
from .host_entries import Checked, HostArgument, c_names, with_workspaces
from .host_tensors import CUDA
from .host_writer import MESSAGE, HostFunction
from .value import V

PREFIX = "__tvm_ffi_"
_INT, _BOOL, _FLOAT, _DL_TENSOR, _TENSOR = 1, 2, 3, 7, 70  # TVMFFITypeIndex
_SCALARS = ("bool", "float32", "float64")  # and all integers
_HEADER = 24  # bytes of a TVMFFIObject
_ANY = 16  # bytes of a TVMFFIAny
_WRONG_TYPE, _NO_LIBRARY = -4, -5
_LOADED = 6  # RTLD_NOLOAD | RTLD_NOW
_FUNCTIONS = ("TVMFFIEnvGetStream", "TVMFFIErrorSetRaisedFromCStr")


def add_tvm_entry(host: Host, name: str, arguments: Sequence[HostArgument]) -> None:
    """Define `__tvm_ffi_NAME`, which takes inputs and then outputs. Raises `NoHostCode` for 8- and 16-bit float scalars."""
    for argument in arguments:
        dtype = argument.dtype
        if argument.scalar is not None and not (dtype.is_integer or dtype.name in _SCALARS):
            what = f"the scalar {argument.name!r} is {dtype}, which tvm-ffi does not have"
            raise NoHostCode(kernel=host.plan.name, what=what, hint="let the kernel take float32")
    host.module.parts.append("@kd.tvm = internal global [2 x ptr] zeroinitializer, align 8")
    host.module.function("internal i32 @kd.tvm.find()", lambda f: _find(host, f), "noinline ")
    signature = "internal i32 @kd.tvm.launch(ptr %args, i32 %count, ptr %message)"
    host.module.function(signature, lambda f: _launch(host, f, arguments))
    signature = f"i32 @{PREFIX}{name}(ptr %handle, ptr %args, i32 %count, ptr %result)"
    host.module.function(signature, lambda f: _entry(host, f))


def _find(host: Host, f: HostFunction) -> None:
    """Look tvm-ffi's functions up in its library or, if that has another name, in all loaded libraries."""
    library = f.v(f"call ptr @dlopen(ptr {host.module.text('libtvm_ffi.so')}, i32 {_LOADED})", "ptr")
    for number, symbol in enumerate(_FUNCTIONS):
        found = f.v(f"call ptr @dlsym(ptr {library}, ptr {host.module.text(symbol)})", "ptr")
        f.leave_when(found.equal("null"), lambda: f.do(f"ret i32 {_NO_LIBRARY}"))
        place = f.after("@kd.tvm", 8 * number)
        f.do(f"store atomic ptr {found}, ptr {place} release, align 8")
    f.do("ret i32 0")


def _function(f: HostFunction, number: int) -> V:
    return f.v(f"load atomic ptr, ptr {f.after('@kd.tvm', 8 * number)} acquire, align 8", "ptr")


def _entry(host: Host, f: HostFunction) -> None:
    ready = _function(f, len(_FUNCTIONS) - 1)
    with f.when(ready.equal("null")):
        host.call(f, "@kd.tvm.find()")
    message = f.room(MESSAGE)
    f.write("i8", 0, message)
    code = f.v(f"call i32 @kd.tvm.launch(ptr %args, i32 %count, ptr {message})", "i32")
    f.leave_when(code.equal(0), lambda: f.do("ret i32 0"))
    kinds = [host.module.text(word) for word in ("RuntimeError", "ValueError", "TypeError")]
    kind = code.equal(-1).where(kinds[1], kinds[0], "ptr")
    kind = code.equal(_WRONG_TYPE).where(kinds[2], kind, "ptr")
    f.do(f"call void {_function(f, 1)}(ptr {kind}, ptr {message})")
    f.do("ret i32 -1")


def _launch(host: Host, f: HostFunction, arguments: Sequence[HostArgument]) -> None:
    wrong = _Wrong(host, f)
    words = f"%d arguments, and the kernel takes {len(arguments)}: inputs, then outputs"
    wrong.type(f.given("%count", "i32").differs(len(arguments)), words, "i32 %count")
    entry = Checked(host, f)
    names = c_names(arguments)
    scalars = f.room(8 * sum(a.scalar is not None for a in arguments))
    for number, (argument, name) in enumerate(zip(arguments, names, strict=True)):
        given = f.after("%args", _ANY * number)
        if argument.scalar is not None:
            place = f.room(16, 16)
            _scalar(wrong, given, argument, name, place)
            f.write("ptr", place, scalars, 8 * argument.scalar)
        else:
            assert argument.array is not None
            entry.array(argument.array, _tensor(wrong, given, name), name)
    entry.apart([names[k] for k, a in enumerate(arguments) if a.array is not None])
    device = entry.device()
    stream = f.v(f"call ptr {_function(f, 0)}(i32 {CUDA}, i32 {device})", "ptr")
    f.do(f"%stream = getelementptr i8, ptr {stream}, i64 0")
    launch = f"@kd.launch(ptr %stream, i32 {device}"
    f.do(f"ret i32 {with_workspaces(host, f, launch, entry.rows, scalars)}")


class _Wrong:
    """Errors for arguments of another kind."""

    def __init__(self, host: Host, f: HostFunction) -> None:
        self.name, self.f = host.plan.name.replace("%", "%%"), f

    def type(self, condition: V, words: str, *values: str) -> None:
        self._leave(condition, _WRONG_TYPE, words, *values)

    def value(self, condition: V, words: str, *values: str) -> None:
        self._leave(condition, -1, words, *values)

    def _leave(self, condition: V, code: int, words: str, *values: str) -> None:
        self.f.refuse(condition, code, f"{self.name}: {words}", *values)


def _is(f: HostFunction, kind: V, *kinds: int) -> V:
    """Whether a kind is one of these."""
    found = f.given("false", "i1")
    for k in kinds:
        found = found | kind.equal(k)
    return found


def _tensor(wrong: _Wrong, given: str, name: str) -> str:
    """The address of an argument's DLTensor."""
    f = wrong.f
    kind, value = f.load("i32", given), f.pointer(given, 8)
    known = _is(f, kind, _DL_TENSOR, _TENSOR)
    wrong.type(~known, f"{name} is no tensor: its type index is %d", f"i32 {kind}")
    return _is(f, kind, _TENSOR).where(f.after(value, _HEADER), value, "ptr")


def _scalar(wrong: _Wrong, given: str, argument: HostArgument, name: str, place: str) -> None:
    """Store an argument's value, in the kernel's dtype, at `place`."""
    f, dtype = wrong.f, argument.dtype
    kind, word = f.load("i32", given), f.word(given, 8)
    whole = _is(f, kind, _INT, _BOOL)
    if dtype.name in ("float32", "float64"):
        known = whole | _is(f, kind, _FLOAT)
        wrong.type(~known, f"{name} is no number: its type index is %d", f"i32 {kind}")
        real = whole.where(word.to("sitofp", "double"), f.load("double", given, 8))
        narrow = dtype.name == "float32"
        f.write("float" if narrow else "double", real.to("fptrunc", "float") if narrow else real, place)
        return
    wrong.type(~whole, f"{name} is no integer: its type index is %d", f"i32 {kind}")
    if dtype.name == "bool":
        f.write("i8", word.differs(0).zext("i8"), place)
        return
    if dtype.bits < 64:
        part = word.trunc(f"i{dtype.bits}")
        back = part.to("sext" if dtype.is_signed else "zext", "i64")
        wrong.value(back.differs(word), f"{name} is %lld, which {dtype} has not", f"i64 {word}")
        f.write(f"i{dtype.bits}", part, place)
    else:
        f.write("i64", word, place)
