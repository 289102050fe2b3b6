"""Ops of PyTorch whose launches need no Python in this process: one boxed kernel of an op, and attempts for its signatures.

An op serves all shapes, and host code serves one signature. So the op's kernel asks several attempts in turn. An attempt
launches if the tensors have the signature that it was compiled for. If no attempt does, another op of PyTorch, written in
Python, takes the call.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from .host import ROW, Host
from .host_entries import HostArgument, with_workspaces
from .host_repeated import Repeated
from .host_tensors import on_gpu
from .host_torch import BoxedKernel, torch_schema
from .host_writer import MESSAGE, HostFunction, quoted

ATTEMPT, FIND, STUB, TABLE = "kd_attempt", "kd_find", "kd_stub", "kd_table"
_OTHER = 1  # what an attempt returns for tensors that it is not for


def add_attempt(host: Host, arguments: Sequence[HostArgument], key: str, device: int) -> None:
    """Define `i32 ATTEMPT(stack, message)` and `i32 FIND()`, which must be called once before the first attempt.

    An attempt returns 0 if it launched, with the results in the arguments' places; 1 if it did nothing; another number after an
    error, when the arguments have been released. `device`: the GPU of the attempt.
    """
    made = BoxedKernel(host, "kd", "kd::op", torch_schema(host, arguments), arguments, key)
    made.find()

    def launch(f: HostFunction) -> None:
        host.call(f, "@kd.driver.load(ptr %message)")
        arrays = dict[int, str]()
        scalars = f.room(8 * (len(made.inputs) - len(made.tensors)))
        for number, argument in enumerate(made.inputs):
            if argument.scalar is not None:
                place = f.room(16, 16)
                type, value = made.scalar(f, argument, f.after("%stack", 8 * number), _OTHER).split()
                f.write(type, value, place)
                f.write("ptr", place, scalars, 8 * argument.scalar)
                continue
            assert argument.array is not None
            tensor = made.tensor(f, f.pointer("%stack", 8 * number))
            arrays[argument.array] = tensor
        repeated = Repeated(host, f, arrays)
        repeated.fits(on_gpu(device))
        now = f.room(4)
        code = f.driver("cuCtxGetDevice", f"ptr {now}")
        elsewhere = partial(f.load("i32", now).differs, device)
        f.leave_to(repeated.other, f.any([partial(code.differs, 0), elsewhere]))
        rows = repeated.rows()
        for number, argument in enumerate(made.outputs):
            assert argument.array is not None
            address = f.room(8)
            made.call(
                f, "aoti_torch_get_data_ptr", f"ptr {made.new(f, number, argument, str(device))}", f"ptr {address}"
            )
            f.write("i64", f.word(address, 0), rows, ROW * argument.array)
        f.do(f"%stream = getelementptr i8, ptr {made.stream(f, str(device))}, i64 0")
        called = f"@kd.launch(ptr %stream, i32 {device}"
        f.do(f"ret i32 {with_workspaces(host, f, called, rows, scalars)}")
        f.begin(repeated.other)
        f.do(f"ret i32 {_OTHER}")

    def attempt(f: HostFunction) -> None:
        outputs = f.room(8 * len(made.outputs))
        for number in range(len(made.outputs)):
            f.write("ptr", "null", outputs, 8 * number)
        code = f.v(f"call i32 @kd.attempt(ptr %stack, ptr {outputs}, ptr %message)", "i32")
        f.leave_when(code.equal(_OTHER), lambda: f.do(f"ret i32 {_OTHER}"))
        for number in made.tensors:
            made.delete(f, f.pointer("%stack", 8 * number))

        def failed() -> None:
            made.forget(f, outputs)
            f.do(f"ret i32 {code}")

        f.leave_when(code.differs(0), failed)
        for number in range(len(made.outputs)):
            f.write("ptr", f.pointer(outputs, 8 * number), "%stack", 8 * number)
        f.do("ret i32 0")

    host.module.function("internal i32 @kd.attempt(ptr %stack, ptr %made, ptr %message)", launch, "noinline ")
    host.module.function(f"i32 @{ATTEMPT}(ptr %stack, ptr %message)", attempt)
    host.module.function(f"i32 @{FIND}()", lambda f: f.do(f"ret i32 {f.v('call i32 @kd.torch.find()', 'i32')}"))


def stub_text(other: str, places: int, dispatch: int, check: int, words: int, paused: int) -> str:
    """The module of one op: its boxed kernel `STUB`, and `TABLE`, up to `places` addresses of attempts.

    `other`: the op, "namespace::name", that takes the calls which no attempt takes. The rest are addresses: `dispatch` and
    `check` of PyTorch's `aoti_torch_call_dispatcher` and `aoti_torch_check`; `words` of the other op's error text; `paused` of
    an int that sends all calls to the other op if it is not 0.
    """
    name = other.encode() + bytes(1)
    return f"""
@{TABLE} = global [{places + 1} x ptr] zeroinitializer, align 8
@kd.other = private constant [{len(name)} x i8] {quoted(name)}
@kd.none = private constant [1 x i8] zeroinitializer
define void @{STUB}(ptr %stack, i64 %inputs, i64 %outputs) uwtable {{
entry:
  %message = alloca [{MESSAGE} x i8], align 8
  store i8 0, ptr %message
  %paused = load atomic i32, ptr inttoptr (i64 {paused} to ptr) monotonic, align 4
  %goes = icmp eq i32 %paused, 0
  br i1 %goes, label %top, label %other
top:
  %i = phi i64 [ 0, %entry ], [ %j, %next ]
  %place = getelementptr ptr, ptr @{TABLE}, i64 %i
  %attempt = load atomic ptr, ptr %place acquire, align 8
  %none = icmp eq ptr %attempt, null
  br i1 %none, label %other, label %try
try:
  %code = call i32 %attempt(ptr %stack, ptr %message)
  %done = icmp eq i32 %code, 0
  br i1 %done, label %end, label %not
not:
  %j = add i64 %i, 1
  %misfit = icmp eq i32 %code, {_OTHER}
  br i1 %misfit, label %next, label %raise
next:
  br label %top
other:
  %found = call i32 inttoptr (i64 {dispatch} to ptr)(ptr @kd.other, ptr @kd.none, ptr %stack)
  %fine = icmp eq i32 %found, 0
  br i1 %fine, label %end, label %raise
raise:
  %said = phi ptr [ %message, %not ], [ inttoptr (i64 {words} to ptr), %other ]
  call void inttoptr (i64 {check} to ptr)(i1 zeroext false, ptr @kd.none, ptr @kd.none, i32 0, ptr %said)
  ret void
end:
  ret void
}}
"""
