"""The only user of llvmlite: LLVM text in, optimised PTX out; of host code, an object file or an address."""

from __future__ import annotations

import _thread
import atexit
import ctypes
import mmap
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import llvmlite.binding as llvm
from llvmlite.binding import ffi

from kernel_dsl import forking
from kernel_dsl.target import Target

TRIPLE = "nvptx64-nvidia-cuda"
# llvmlite's own lock, which it holds for each call of LLVM. All modules share one context, and a fork must not copy
# that in the middle of a change.
forking.fork_waits_for(ffi.lib._lock._lock)  # pyright: ignore[reportPrivateUsage]


class LlvmError(RuntimeError):
    """LLVM refused text that this project wrote: a bug of this project, not of the user."""


@cache
def _initialise() -> Any:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    # Straight-line strength reduction tests of every integer add whether its block can be undefined: three quarters of
    # the time for a block of 1500 instructions. The test guards against poison of nsw, nuw and inbounds. Our text never
    # has these, and LLVM infers them only where they always hold. (--opt-disable=slsr would be as fast, but makes every
    # run of the passes look up their names, in memory that llvmlite never frees: 55 KB a compile.)
    llvm.set_option("", "--enable-poison-reuse-guard=false")
    # LLVM verifies debug metadata of an older version when it reads it, and ends the process on an error.
    # Ours is of this version, and `to_ptx` verifies.
    llvm.set_option("", "--disable-auto-upgrade-debug-info")
    return llvm.Target.from_triple(TRIPLE)


@cache
def _machine(cpu: str, version: tuple[int, int]) -> Any:
    features = f"+ptx{version[0]}{version[1]}"
    # opt=3 also keeps tied asm operands free of copies
    return _initialise().create_target_machine(cpu=cpu, features=features, opt=3, codemodel="default")


@cache
def _data_layout(cpu: str, version: tuple[int, int]) -> str:
    return str(_machine(cpu, version).target_data)


def header(target: Target) -> str:
    """The first lines of every module."""
    layout = _data_layout(target.name, target.ptx_version)
    return f'target triple = "{TRIPLE}"\ntarget datalayout = "{layout}"\n'


# Straight-line strength reduction compares each integer sum with all others of one operand, at some 0.8 us a pair,
# until it finds one that differs by a constant. It finds one immediately if the sums come from one index, and none if
# each has another source: a float's bits, or the address of another array.
_PAIRS = 200_000
_LONG = 500_000  # characters; a shorter module does not have so many pairs
_INTEGER = re.compile(
    r"^  (%[\w.]+) = (add|sub|mul|shl|[al]shr|and|or|xor|[sz]ext|trunc|udiv|urem) (.*)$", re.MULTILINE
)
_OPERAND = re.compile(r"(%[\w.]+|-?\d+)(?:,|$)")


def _pairs(text: str) -> int:
    """The number of pairs of sums that this pass compares, from the number of different sources of sums of one operand."""
    origin: dict[str, str] = {}
    sums: defaultdict[str, set[str]] = defaultdict(set)
    for line in _INTEGER.finditer(text):
        name, op, rest = line[1], line[2], line[3]
        operands: list[str] = _OPERAND.findall(rest.partition(", !dbg")[0])
        origins = {origin.get(x, x) for x in operands if x[0] == "%"}
        origin[name] = origins.pop() if len(origins) == 1 else name
        if op == "add" and len(operands) == 2:
            for x, y in (operands, operands[::-1]):
                if x[0] == "%":
                    sums[y].add(origin.get(x, x))
    return sum(len(found) ** 2 for found in sums.values()) // 2


def _keep_linear(module: Any) -> None:
    """Leave out machine-code passes that would take quadratic time, by `optnone` on the function.

    The module's own passes have run; the function loses only what its addresses share. No kernel of the library comes
    near this limit; a chain of 250 exponentials does.
    """
    text = str(module)
    if len(text) < _LONG or _pairs(text) < _PAIRS:
        return
    for function in module.functions:
        if not function.is_declaration:
            function.add_function_attribute("noinline")
            function.add_function_attribute("optnone")


def to_ptx(text: str, target: Target) -> str:
    """Optimise a module and print its PTX.

    Raises `LlvmError` if the text does not parse or verify. A separate thread does the work. In the main thread, Ctrl-C
    would wait for LLVM's longest call, and could leave llvmlite's lock held.
    """
    return _aside(lambda: _to_ptx(text, target))


_running: set[Any] = set()  # the gates of calls that have not ended
forking.in_child(_running.clear)


def _aside(work: Callable[[], str]) -> str:
    """What `work` returns or raises, in a thread of its own."""
    made: list[str | Exception] = []
    done = forking.gate()

    def run() -> None:
        _running.add(done)
        try:
            made.append(work())
        except Exception as error:
            made.append(error)
        finally:
            _running.discard(done)
            done.release()

    # `threading.Thread.start` waits for the thread by locks in Python, and an interrupt there can leave one locked for ever
    _thread.start_new_thread(run, ())
    with done:
        result = made[0]
    if isinstance(result, Exception):
        raise result
    return result


@atexit.register
def _wait_for_all() -> None:
    """Let calls end, so that LLVM is not torn down while it runs."""
    for done in list(_running):
        with done:
            pass


def _to_ptx(text: str, target: Target) -> str:
    machine = _machine(target.name, target.ptx_version)
    try:
        module = llvm.parse_assembly(text)
        module.verify()
    except RuntimeError as error:
        raise LlvmError(f"{error}") from None
    return _emitted(module, machine)


def _emitted(module: Any, machine: Any, alone: Sequence[str] = ()) -> str:
    """The PTX of a module, which is closed. `alone`: the functions that it is for; what they do not need goes first."""
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    options.loop_vectorization = False
    options.loop_interleaving = False
    options.loop_unrolling = False
    options.slp_vectorization = False
    builder = llvm.create_pass_builder(machine, options)
    managers = [builder.getModulePassManager()]
    if alone:  # else the whole library would be optimised
        managers.insert(0, llvm.create_new_module_pass_manager())
        managers[0].add_global_dead_code_eliminate_pass()
    try:
        for passes in managers:
            passes.run(module, builder)
        _keep_linear(module)
        return machine.emit_assembly(module)
    finally:
        # llvmlite's ModulePassManager never frees what it holds: 68 KB a compile
        for passes in managers:
            ffi.lib.LLVMPY_DisposeNewModulePassManger(passes)
            passes.detach()
        module.close()


def library_ptx(bitcode: bytes, functions: Sequence[str], target: Target) -> str:
    """PTX of a device library's functions, of what they call, and of the library's variables, which its host part fills.

    Raises `LookupError` for functions that it lacks, `LlvmError` if it is no bitcode that this LLVM reads.
    """
    return _aside(lambda: _library_ptx(bitcode, functions, target))


def _library_ptx(bitcode: bytes, functions: Sequence[str], target: Target) -> str:
    machine = _machine(target.name, target.ptx_version)
    try:
        module = llvm.parse_bitcode(bitcode)
        module.triple, module.data_layout = TRIPLE, str(machine.target_data)
    except RuntimeError as error:
        raise LlvmError(f"{error}") from None
    defined = {function.name: function for function in module.functions if not function.is_declaration}
    lacking = [name for name in functions if name not in defined]
    if lacking:
        module.close()
        raise LookupError(f"it has no function {lacking[0]}")
    for name, function in defined.items():
        if name not in functions:
            function.linkage = "internal"
    return _emitted(module, machine, functions)


# --- host code ------------------------------------------------------------------------------------


@cache
def _host_target() -> Any:
    _initialise()
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_default_triple()


def _host_module(text: str) -> tuple[Any, Any]:
    """A parsed module for this machine, whose text has no header, and the machine."""
    # opt=0: the code is straight, and takes 5 ms where opt=1 takes 20
    machine = _host_target().create_target_machine(opt=0, reloc="pic", codemodel="default", jit=False)
    head = f'target triple = "{llvm.get_process_triple()}"\ntarget datalayout = "{machine.target_data}"\n'
    try:
        module = llvm.parse_assembly(head + text)
        module.verify()
    except RuntimeError as error:
        raise LlvmError(f"{error}") from None
    return module, machine


def host_object(text: str) -> bytes:
    """Host code as an object file of this machine, of position-independent code."""
    module, machine = _host_module(text)
    try:
        return machine.emit_object(module)
    finally:
        module.close()


@cache
def may_execute() -> bool:
    """Whether this process may make memory executable that it wrote.

    Hardened services forbid it. LLVM does not notice: the process would end at the first call of such code.
    """
    if sys.platform != "linux":
        return True
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    with mmap.mmap(-1, mmap.PAGESIZE, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE) as memory:
        start = ctypes.c_char.from_buffer(memory)
        place = ctypes.c_void_p(ctypes.addressof(start))
        done = ctypes.CDLL(None).mprotect(place, ctypes.c_size_t(mmap.PAGESIZE), mmap.PROT_READ | mmap.PROT_EXEC)
        del start  # else the memory can't be given back
    return done == 0


_engines: list[Any] = []  # never freed: others hold addresses of the code


def host_addresses(text: str, names: Sequence[str], variables: Sequence[str] = ()) -> list[int]:
    """Load host code into this process.

    Returns the addresses of its functions and then of variables, which stay valid until the process ends.
    """
    module, _ = _host_module(text)
    machine = _host_target().create_target_machine(opt=0, reloc="default", codemodel="jitdefault", jit=True)
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    _engines.append(engine)
    functions = [engine.get_function_address(name) for name in names]
    return functions + [engine.get_global_value_address(name) for name in variables]
