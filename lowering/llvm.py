"""The only user of llvmlite: LLVM text in, optimised PTX out."""

from __future__ import annotations

from functools import cache
from typing import Any

import llvmlite.binding as llvm
from llvmlite.binding import ffi

from kernel_dsl import forking
from kernel_dsl.target import Target

TRIPLE = "nvptx64-nvidia-cuda"
# llvmlite's own lock, which it holds for each call of LLVM: all modules are of one context, and a child of a fork must
# not get that in the middle of a change.
forking.fork_waits_for(ffi.lib._lock._lock)  # pyright: ignore[reportPrivateUsage]


class LlvmError(RuntimeError):
    """LLVM refused text that this project wrote: a bug of ours, never the user's."""


@cache
def _initialise() -> Any:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    # Straight-line strength reduction asks of every integer add whether its block can be undefined: three quarters of
    # the time for a block of 1500 instructions. What it guards against is poison of nsw, nuw and inbounds, which our
    # text never says and LLVM only infers where it always holds. (--opt-disable=slsr would be as fast, but makes every
    # run of the passes look their names up, into memory that llvmlite never frees: 55 KB a compile.)
    llvm.set_option("", "--enable-poison-reuse-guard=false")
    # Reading debug metadata of an older version begins with a run of the verifier, which ends the process on an error.
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


def to_ptx(text: str, target: Target, *, level: int = 2) -> str:
    """Optimise a module and print its PTX. Raises `LlvmError` where the text does not parse or verify."""
    machine = _machine(target.name, target.ptx_version)
    try:
        module = llvm.parse_assembly(text)
        module.verify()
    except RuntimeError as error:
        raise LlvmError(f"{error}") from None
    options = llvm.create_pipeline_tuning_options(speed_level=level)
    options.loop_vectorization = False
    options.loop_interleaving = False
    options.loop_unrolling = False
    options.slp_vectorization = False
    builder = llvm.create_pass_builder(machine, options)
    passes = builder.getModulePassManager()
    try:
        passes.run(module, builder)
        return machine.emit_assembly(module)
    finally:
        # llvmlite's ModulePassManager never frees what it holds: 68 KB a compile
        ffi.lib.LLVMPY_DisposeNewModulePassManger(passes)
        passes.detach()
        module.close()
