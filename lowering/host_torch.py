"""The entry of host code in PyTorch's dispatcher: an op that a library made of the object file registers when it is loaded.

`void NAME_torch(uint64_t *stack, uint64_t, uint64_t)` is a boxed kernel of PyTorch's stable C interface. A word of the stack is
a tensor's handle, which is then ours to delete, or the bits of a double, an int64 or a bool; results take the arguments' places.
It gives DLTensors to the C entry, which checks them. Nothing is linked: the code finds PyTorch's functions in the libraries that
the program has loaded. Layouts and numbers are those of `torch/csrc/inductor/aoti_torch/c/shim.h` and `c10/core/ScalarType.h`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kernel_dsl.dtypes import as_dtype
from kernel_dsl.errors import NoHostCode

from .host import Host
from .host_entries import HostArgument, c_names, scalar_type
from .host_tensors import CUDA, DL_CODES
from .host_writer import MESSAGE, HostFunction, HostModule

# ScalarType by dtype
NUMBERS = {
    "uint8": 0, "int8": 1, "int16": 2, "int32": 3, "int64": 4, "float16": 5, "float32": 6, "float64": 7, "complex64": 9,
    "bool": 11, "bfloat16": 15, "float8_e5m2": 23, "float8_e4m3fn": 24, "uint16": 27, "uint32": 28, "uint64": 29,
    "float8_e8m0fnu": 44,
}  # fmt: skip
_FUNCTIONS = (
    "aoti_torch_get_data_ptr",
    "aoti_torch_get_dim",
    "aoti_torch_get_sizes",
    "aoti_torch_get_strides",
    "aoti_torch_get_dtype",
    "aoti_torch_get_device_type",
    "aoti_torch_get_device_index",
    "aoti_torch_empty_strided",
    "aoti_torch_delete_tensor_object",
    "aoti_torch_library_init_fragment",
    "aoti_torch_library_init_impl",
    "aoti_torch_library_def",
    "aoti_torch_library_impl",
    "aoti_torch_check",
)
_STREAM = "aoti_torch_get_current_cuda_stream"  # of another library
_NO_LIBRARY, _TORCH_FAILED = -5, -6
_LOADED = 6  # RTLD_NOLOAD | RTLD_NOW
_NONE: Mapping[int, int] = {}
_KEYS = {"CUDA": 1, "CPU": 0}  # a dispatch key's DeviceType
_DL_TENSOR = 48  # bytes
_ON_CPU = 1  # DLDeviceType


def torch_schema(host: Host, arguments: Sequence[HostArgument], written: Mapping[int, int] = _NONE) -> str:
    """The types of an op's arguments and results in PyTorch's schema.

    `written`: by array, the input that an output is written to; it is no result. Raises `NoHostCode` for 8- and 16-bit float
    scalars.
    """
    taken = list[str]()
    inputs, outputs = _split(host, arguments)
    for argument, name in zip(inputs, c_names(arguments), strict=False):
        dtype = argument.dtype
        kind = "Tensor"
        if argument.scalar is not None:
            kind = "bool" if dtype.name == "bool" else "SymInt" if dtype.is_integer else "float"
        if kind == "float" and dtype.name not in ("float32", "float64"):
            what = f"the scalar {argument.name!r} is {dtype}, which PyTorch's ops do not have"
            raise NoHostCode(kernel=host.plan.name, what=what, hint="let the kernel take float32")
        taken.append(f"{f'Tensor({name}!)' if argument.array in written.values() else kind} {name}")
    made = ", ".join("Tensor" for a in outputs if a.array not in written)
    return f"({', '.join(taken)}) -> {made if made == 'Tensor' else f'({made})'}"


def _split(host: Host, arguments: Sequence[HostArgument]) -> tuple[list[HostArgument], list[HostArgument]]:
    """The inputs, and the outputs, which follow them."""
    inputs = [a for a in arguments if a.array is None or a.array < host.plan.inputs]
    return inputs, list(arguments[len(inputs) :])


def add_torch_entry(
    host: Host,
    symbol: str,
    op: str,
    arguments: Sequence[HostArgument],
    key: str = "CUDA",
    written: Mapping[int, int] = _NONE,
) -> None:
    """Define `SYMBOL_torch` and its registration as `op`, "namespace::name", beside the C entry `symbol`.

    `written`: see `torch_schema`. `key`: the dispatch key of the kernel. "CPU" is for drivers without a GPU, whose memory is
    the host's.
    """
    schema = torch_schema(host, arguments, written)
    host.module.parts.append(
        "@llvm.global_ctors = appending global [1 x { i32, ptr, ptr }] "
        f"[{{ i32, ptr, ptr }} {{ i32 65535, ptr @{symbol}_torch_register, ptr null }}]"
    )
    made = BoxedKernel(host, symbol, op, schema, arguments, key, written)
    made.find()
    made.register()
    made.launch()
    made.entry()


class BoxedKernel:
    """The functions of one entry, while they are written."""

    def __init__(
        self,
        host: Host,
        symbol: str,
        op: str,
        schema: str,
        arguments: Sequence[HostArgument],
        key: str,
        written: Mapping[int, int] = _NONE,
    ) -> None:
        self.host: Host = host
        self.symbol: str = symbol
        self.op: str = op
        self.schema: str = schema
        self.key: str = key
        self.arguments: Sequence[HostArgument] = arguments
        self.written: Mapping[int, int] = written
        self.inputs: list[HostArgument]
        self.inputs, listed = _split(host, arguments)
        self.all_outputs = listed
        self.outputs: list[HostArgument] = [a for a in listed if a.array not in written]  # the op's results
        self.tensors: list[int] = [n for n, a in enumerate(self.inputs) if a.scalar is None]
        self.module: HostModule = host.module

    def function(self, f: HostFunction, name: str) -> str:
        return f.load("ptr", "@kd.torch", 8 * _FUNCTIONS.index(name))

    def call(self, f: HostFunction, name: str, *arguments: str) -> None:
        """Call a function of PyTorch, and return if it fails."""
        code = f.v(f"call i32 {self.function(f, name)}({', '.join(arguments)})", "i32")

        def leave() -> None:
            f.say("%message", f"{self.host.plan.name.replace('%', '%%')}: {name} failed")
            f.do(f"ret i32 {_TORCH_FAILED}")

        f.leave_when(code.differs(0), leave)

    def find(self) -> None:
        """Look PyTorch's functions up in its libraries or, if these have other names, in all loaded libraries."""
        self.module.parts.append(
            f"@kd.torch = internal global [{len(_FUNCTIONS)} x ptr] zeroinitializer, align 8\n"
            "@kd.torch.stream = internal global ptr null"
        )

        def body(f: HostFunction) -> None:
            library = f.v(f"call ptr @dlopen(ptr {self.module.text('libtorch_cpu.so')}, i32 {_LOADED})", "ptr")
            for number, symbol in enumerate(_FUNCTIONS):
                found = f.v(f"call ptr @dlsym(ptr {library}, ptr {self.module.text(symbol)})", "ptr")
                f.leave_when(found.equal("null"), lambda: f.do(f"ret i32 {_NO_LIBRARY}"))
                f.write("ptr", found, "@kd.torch", 8 * number)
            library = f.v(f"call ptr @dlopen(ptr {self.module.text('libtorch_cuda.so')}, i32 {_LOADED})", "ptr")
            found = f.v(f"call ptr @dlsym(ptr {library}, ptr {self.module.text(_STREAM)})", "ptr")
            f.write("ptr", found, "@kd.torch.stream")
            f.do("ret i32 0")

        self.module.function("internal i32 @kd.torch.find()", body, "noinline ")

    def register(self) -> None:
        """Define and register the op, once.

        An op that is already defined, for example by Python, only gets this kernel.
        """

        def body(f: HostFunction) -> None:
            self.host.call(f, "@kd.torch.find()")
            space, _, name = self.op.partition("::")
            words = [self.module.text(w) for w in (space, name, f"{name}{self.schema}", self.key, self.symbol)]
            space, name, schema, key, file = (f"ptr {w}" for w in words)
            library = f.room(8)
            steps: tuple[tuple[str, tuple[str, ...]], ...] = (
                ("aoti_torch_library_init_fragment", (space, file, "i32 0", f"ptr {library}")),
                ("aoti_torch_library_def", ("", schema)),
                ("aoti_torch_library_init_impl", (space, key, file, "i32 0", f"ptr {library}")),
                ("aoti_torch_library_impl", ("", name, f"ptr @{self.symbol}_torch")),
            )
            for function, given in steps:
                listed = [word or f"ptr {f.load('ptr', library)}" for word in given]
                code = f.v(f"call i32 {self.function(f, function)}({', '.join(listed)})", "i32")
                if function != "aoti_torch_library_def":
                    f.leave_when(code.differs(0), lambda: f.do(f"ret i32 {_TORCH_FAILED}"))
            f.do("ret i32 0")

        self.module.function(f"i32 @{self.symbol}_torch_register()", body)

    def launch(self) -> None:
        """`made`: the handles of the outputs that exist so far."""

        def body(f: HostFunction) -> None:
            device = "0"
            values = list[str]()
            given = dict[int | None, str]()  # tensors of inputs, by array
            for number, argument in enumerate(self.inputs):
                if argument.scalar is not None:
                    values.append(self.scalar(f, argument, f.after("%stack", 8 * number)))
                    continue
                handle = f.pointer("%stack", 8 * number)
                tensor = self.tensor(f, handle)
                if device == "0":
                    device = f.load("i32", tensor, 12)
                values.append(f"ptr {tensor}")
                given[argument.array] = tensor
            for argument in self.all_outputs:
                source = self.written.get(argument.array or 0)
                tensor = (
                    self.output(f, self.outputs.index(argument), argument, device) if source is None else given[source]
                )
                values.append(f"ptr {tensor}")
            stream = self.stream(f, device)
            code = f.v(f"call i32 @{self.symbol}(ptr {stream}, {', '.join(values)})", "i32")

            def told() -> None:
                words = f.v(f"call ptr @{self.symbol}_error()", "ptr")
                f.say("%message", "%s", f"ptr {words}")
                f.do(f"ret i32 {code}")

            f.leave_when(code.differs(0), told)
            f.do("ret i32 0")

        self.module.function("internal i32 @kd.torch.launch(ptr %stack, ptr %made, ptr %message)", body, "noinline ")

    def scalar(self, f: HostFunction, argument: HostArgument, place: str, misfit: int = -1) -> str:
        """An argument of the C entry, from a word of the stack; `misfit` is returned for an integer out of range."""
        dtype, type = argument.dtype, scalar_type(argument.dtype)
        if type in ("float", "double"):
            value = f.load("double", place)
            return f"{type} {value.to('fptrunc', 'float') if type == 'float' else value}"
        if dtype.name == "bool":
            return f"i8 {f.load('i8', place)}"
        word = f.word(place, 0)
        if dtype.bits == 64:
            return f"i64 {word}"
        part = word.trunc(type)
        back = part.to("sext" if dtype.is_signed else "zext", "i64")

        def wrong() -> None:
            name = self.host.plan.name.replace("%", "%%")
            f.say("%message", f"{name}: {argument.name} is %lld, which {dtype} has not", f"i64 {word}")
            f.do(f"ret i32 {misfit}")

        f.leave_when(back.differs(word), wrong)
        return f"{type} {part}"

    def tensor(self, f: HostFunction, handle: str) -> str:
        """A DLTensor of a tensor, with pointers to the tensor's shape and strides."""
        tensor = f.room(_DL_TENSOR)
        for name, offset in (("data_ptr", 0), ("sizes", 24), ("strides", 32)):
            self.call(f, f"aoti_torch_get_{name}", f"ptr {handle}", f"ptr {f.after(tensor, offset)}")
        index, rank, kind, dtype = (f.room(8) for _ in range(4))
        self.call(f, "aoti_torch_get_device_index", f"ptr {handle}", f"ptr {index}")
        where = f.load("i32", index)  # -1 on a CPU
        f.write("i32", where.lt(0).where(0, where, "i32"), tensor, 12)
        self.call(f, "aoti_torch_get_dim", f"ptr {handle}", f"ptr {rank}")
        f.write("i32", f.word(rank, 0).trunc("i32"), tensor, 16)
        self.call(f, "aoti_torch_get_device_type", f"ptr {handle}", f"ptr {kind}")
        here = f.load("i32", kind).equal(_KEYS[self.key])
        f.write("i32", here.where(CUDA, _ON_CPU, "i32"), tensor, 8)
        self.call(f, "aoti_torch_get_dtype", f"ptr {handle}", f"ptr {dtype}")
        number = f.load("i32", dtype)
        known = number.below(_TYPES - 1)
        place = known.where(number, _TYPES - 1, "i32").zext("i64")
        place = place * 4
        f.write("i32", f.load("i32", self.module.words(_dl_types(), 32), place), tensor, 20)
        f.write("i64", 0, tensor, 40)
        return tensor

    def output(self, f: HostFunction, number: int, argument: HostArgument, device: str) -> str:
        """The DLTensor of a new tensor, whose handle is kept."""
        return self.tensor(f, self.new(f, number, argument, device))

    def new(self, f: HostFunction, number: int, argument: HostArgument, device: str) -> str:
        """The handle of a new tensor, which is kept."""
        assert argument.array is not None
        shape = self.host.plan.arrays[argument.array].shape
        strides = [1] * len(shape)
        for axis in reversed(range(len(shape) - 1)):
            strides[axis] = strides[axis + 1] * max(shape[axis + 1], 1)
        place = f.after("%made", 8 * number)
        given = [
            f"i64 {len(shape)}", f"ptr {self.module.words(list(shape) or [0])}", f"ptr {self.module.words(strides or [0])}",
            f"i32 {NUMBERS[argument.dtype.name]}", f"i32 {_KEYS[self.key]}", f"i32 {device}", f"ptr {place}",
        ]  # fmt: skip
        self.call(f, "aoti_torch_empty_strided", *given)
        return f.pointer(place, 0)

    def stream(self, f: HostFunction, device: str) -> str:
        """PyTorch's current stream of the GPU."""
        stream = f.room(8)
        f.write("ptr", "null", stream)
        if self.key == "CUDA":
            get = f.load("ptr", "@kd.torch.stream")

            def without() -> None:
                f.say("%message", f"{self.host.plan.name.replace('%', '%%')}: this PyTorch has no CUDA")
                f.do(f"ret i32 {_NO_LIBRARY}")

            f.leave_when(get.equal("null"), without)
            f.v(f"call i32 {get}(i32 {device}, ptr {stream})", "i32")
        return f.load("ptr", stream)

    def delete(self, f: HostFunction, handle: str) -> None:
        f.do(f"call i32 {self.function(f, 'aoti_torch_delete_tensor_object')}(ptr {handle})")

    def forget(self, f: HostFunction, made: str) -> None:
        """Delete the outputs that there are."""
        for number in range(len(self.outputs)):
            handle = f.pointer(made, 8 * number)
            with f.when(handle.differs("null")):
                self.delete(f, handle)

    def entry(self) -> None:
        """The boxed kernel. An error becomes PyTorch's exception, which passes through this frame."""

        def body(f: HostFunction) -> None:
            message, made = f.room(MESSAGE), f.room(8 * max(len(self.outputs), 1))
            f.write("i8", 0, message)
            for number in range(len(self.outputs)):
                f.write("ptr", "null", made, 8 * number)
            code = f.v(f"call i32 @kd.torch.launch(ptr %stack, ptr {made}, ptr {message})", "i32")

            for number in self.tensors:
                self.delete(f, f.pointer("%stack", 8 * number))

            def raised() -> None:
                self.forget(f, made)
                name = self.module.text(self.symbol)
                check = self.function(f, "aoti_torch_check")
                f.do(f"call void {check}(i1 zeroext false, ptr {name}, ptr {name}, i32 0, ptr {message})")
                f.do("ret void")

            f.leave_when(code.differs(0), raised)
            for number in range(len(self.outputs)):
                f.write("ptr", f.pointer(made, 8 * number), "%stack", 8 * number)
            f.do("ret void")

        self.module.function(f"void @{self.symbol}_torch(ptr %stack, i64 %inputs, i64 %outputs)", body, throws=True)


_TYPES = 64  # numbers of ScalarType in the table; the last stands for all larger ones


def _dl_types() -> list[int]:
    """For each number of a ScalarType, a DLDataType as four bytes; 0 if there is none."""
    made = [0] * _TYPES
    for name, number in NUMBERS.items():
        made[number] = DL_CODES[name] | as_dtype(name).bits << 8 | 1 << 16
    return made
