"""Kernels in programs without Python: host code from a kernel's stages. Like kernel.py and stages.py it joins the layers."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from .compiled import Assembled
from .diagnostics import shown
from .errors import BadArgument, NoHostCode
from .ir import KernelIR, RefType
from .launch_plan import CopyStep, LaunchPlan, plan_of

if TYPE_CHECKING:
    from kernel_dsl.lowering.host_entries import HostArgument

_keep: list[Any] = []  # machine code whose address host code holds


def arguments_of(ir: KernelIR) -> list[HostArgument]:
    """A kernel's arguments as its callers count them: inputs in order, then outputs."""
    from kernel_dsl.lowering.host_entries import HostArgument

    made: list[HostArgument] = []
    arrays = scalars = 0
    for value in ir.params:
        name, dtype = value.name or "x", value.type.dtype
        if isinstance(value.type, RefType):
            made.append(HostArgument(name, dtype, array=arrays))
            arrays += 1
        else:
            made.append(HostArgument(name, dtype, scalar=scalars))
            scalars += 1
    return made


def export(
    ir: KernelIR,
    assembled: Assembled,
    name: str,
    folder: str | os.PathLike[str],
    c: bool,
    tvm_ffi: bool = False,
    torch_op: str | None = None,
    mutates_args: Sequence[str] = (),
) -> tuple[Path, ...]:
    """Write the files of an exported kernel, and give their paths. Raises `BadArgument`, `NoHostCode`, `FileError`."""
    from kernel_dsl.lowering.host_entries import C_WORDS
    from kernel_dsl.lowering.host_writer import C_FUNCTIONS
    from kernel_dsl.runtime.build.aot import save, write

    if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) or name in {*C_WORDS, *C_FUNCTIONS}:
        hint = "a C identifier, such as 'softmax': files and functions are named after it"
        raise BadArgument(op="export", what=f"the name {shown(name)}", hint=hint)
    if not isinstance(folder, (str, os.PathLike)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise BadArgument(op="export", what=f"folder={shown(folder)}", hint="a path")
    base = Path(folder)
    if torch_op is not None and not re.fullmatch(r"[A-Za-z_]\w*::[A-Za-z_]\w*", torch_op, re.ASCII):
        raise BadArgument(op="export", what=f"torch_op={shown(torch_op)}", hint="'namespace::op', of two identifiers")
    if torch_op is None and not (isinstance(mutates_args, (tuple, list)) and not mutates_args):
        raise BadArgument(op="export", what="mutates_args without torch_op", hint="it is for an op of PyTorch")
    for given in ["tvm_ffi=True"] * tvm_ffi + [f"torch_op={torch_op!r}"] * (torch_op is not None):
        if not c:
            hint = "the function is part of the object file"
            raise BadArgument(op="export", what=f"{given} without c=True", hint=hint)
    if not c:
        path = base / f"{name}.kd"
        save(assembled, path)
        return (path,)
    from kernel_dsl.lowering.host import Host
    from kernel_dsl.lowering.host_c import header
    from kernel_dsl.lowering.host_entries import add_c_entry
    from kernel_dsl.lowering.llvm import host_object

    arguments = arguments_of(ir)
    host = Host(assembled.kernel, plan_of(assembled.kernel), assembled.cubin)
    add_c_entry(host, name, arguments)
    if tvm_ffi:
        from kernel_dsl.lowering.host_tvm import add_tvm_entry

        add_tvm_entry(host, name, arguments)
    if torch_op is not None:
        from kernel_dsl.lowering.host_torch import add_torch_entry

        add_torch_entry(host, name, torch_op, arguments, written=_written(host.plan, arguments, mutates_args))
    made = {
        base / f"{name}.o": host_object(str(host)),
        base / f"{name}.h": header(name, host.plan, assembled.kernel.target, arguments).encode(),
    }
    for path, data in made.items():
        write(path, data)
    return tuple(made)


def _written(plan: LaunchPlan, arguments: Sequence[HostArgument], names: Any) -> dict[int, int]:
    """By output, the input that an op writes in place. Both are arrays' numbers."""
    from kernel_dsl.lowering.host_entries import c_names

    if isinstance(names, str) or not isinstance(names, (tuple, list)):
        hint = "a list of inputs' names, as for as_torch_op"
        raise BadArgument(op="export", what=f"mutates_args={shown(names)}", hint=hint)
    pairs = {s.source: s.target for s in plan.first if isinstance(s, CopyStep) and s.source < plan.inputs}
    numbers = {name: a.array for name, a in zip(c_names(arguments), arguments, strict=True)}
    made: dict[int, int] = {}
    for name in cast("Sequence[Any]", names):
        source = numbers.get(name)
        if source is None or source not in pairs:
            hint = "an input to which input_output_aliases gives an output"
            raise BadArgument(op="export", what=f"{shown(name)} in mutates_args", hint=hint)
        made[pairs[source]] = source
    return made


def tvm_function(ir: KernelIR, assembled: Assembled) -> Any:
    """The kernel as a `tvm_ffi.Function`. Raises `BadArgument` where there is no package tvm_ffi, and `NoHostCode`."""
    from kernel_dsl.lowering.host import Host
    from kernel_dsl.lowering.host_tvm import PREFIX, add_tvm_entry

    try:
        ffi: Any = import_module("tvm_ffi")
    except ImportError as error:
        hint = "python -m pip install apache-tvm-ffi; or export(..., c=True, tvm_ffi=True), which needs no package"
        raise BadArgument(op="as_tvm_ffi", what=f"the package tvm_ffi ({error})", hint=hint) from None
    host = Host(assembled.kernel, plan_of(assembled.kernel), assembled.cubin)
    add_tvm_entry(host, "kernel", arguments_of(ir))
    (address,) = _loaded(ir.name, str(host), [f"{PREFIX}kernel"])
    return ffi.Function.__from_extern_c__(address)


def ffi_handler(kernel: Any, code: bytes | int, scalars: int) -> int:
    """The address of XLA's handler of a kernel.

    `code`: its machine code, or the address of code that stays at its place.
    """
    from kernel_dsl.lowering.host import Host
    from kernel_dsl.lowering.host_entries import FFI, add_ffi_entry

    host = Host(kernel, plan_of(kernel), code)
    add_ffi_entry(host, scalars)
    return _loaded(kernel.name, str(host), [FFI])[0]


def torch_attempt(ir: KernelIR, assembled: Assembled, key: str, device: int) -> int:
    """The address of what launches a kernel for tensors of one signature on PyTorch's stack. Raises `NoHostCode`."""
    from kernel_dsl.lowering.host import Host
    from kernel_dsl.lowering.host_torch_attempt import ATTEMPT, FIND, add_attempt

    code = ctypes.create_string_buffer(assembled.cubin + b"\0")
    _keep.append(code)
    host = Host(assembled.kernel, plan_of(assembled.kernel), ctypes.addressof(code))
    add_attempt(host, arguments_of(ir), key, device)
    attempt, find = _loaded(ir.name, str(host), [ATTEMPT, FIND])
    if ctypes.CFUNCTYPE(ctypes.c_int)(find)():
        raise NoHostCode(kernel=assembled.kernel.name, what="PyTorch's C interface is not found", hint="update PyTorch")
    return attempt


def torch_stub(other: str, places: int, addresses: list[int]) -> tuple[int, int]:
    """The addresses of an op's boxed kernel and of the table of its attempts: see `stub_text`."""
    from kernel_dsl.lowering.host_torch_attempt import STUB, TABLE, stub_text

    made = _loaded(other, stub_text(other, places, *addresses), [STUB], [TABLE])
    return made[0], made[1]


def replay_code(address: Callable[[str], int]) -> int:
    """The address of what replays a graph for Python (`lowering/host_replay.py`). `address` gives that of a C function."""
    from kernel_dsl.lowering.host_replay import FUNCTIONS, REPLAY, replay_text

    return _loaded("a graph", replay_text({name: address(name) for name in FUNCTIONS}), [REPLAY])[0]


def _loaded(kernel: str, text: str, functions: Sequence[str], variables: Sequence[str] = ()) -> list[int]:
    """The addresses of host code in this process. Raises `NoHostCode` if the process may execute nothing new."""
    from kernel_dsl.lowering.llvm import host_addresses, may_execute

    if not may_execute():
        hint = "allow it (systemd: MemoryDenyWriteExecute=no), or launch from Python"
        raise NoHostCode(kernel=kernel, what="this process may not make memory executable", hint=hint)
    return host_addresses(text, functions, variables)
