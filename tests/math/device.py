"""Compiles functions of `lowering.math` to PTX and assembles them, to count instructions and to see
no local memory.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import llvmlite.binding as llvm

from kernel_dsl.lowering.math import MathFunction, definitions, function

FEATURES = {"sm_80": "+ptx80", "sm_90a": "+ptx86"}


@dataclass(frozen=True)
class Compiled:
    """`instructions`: PTX instructions that belong to the function, its slow path left out."""

    ptx: str
    instructions: int


@cache
def _machine(arch: str) -> llvm.TargetMachine:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple("nvptx64-nvidia-cuda")
    return target.create_target_machine(cpu=arch, features=FEATURES[arch], opt=3, codemodel="default")


def _kernel_text(called: MathFunction) -> str:
    """An entry that applies the function to the element of each thread of a grid of full blocks."""
    type_ = called.dtype
    count = called.arity
    parameters = ", ".join(f"ptr addrspace(1) %p{i}" for i in range(count + 1))
    types = called.parameters
    loads = "\n".join(
        f"  %a{i} = getelementptr {t}, ptr addrspace(1) %p{i}, i64 %index\n  %x{i} = load {t}, ptr addrspace(1) %a{i}"
        for i, t in enumerate(types)
    )
    operands = ", ".join(f"{t} %x{i}" for i, t in enumerate(types))
    return f"""
define ptx_kernel void @kernel({parameters}) "nvvm.reqntid"="128" {{
  %lane = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %block = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
  %first = mul i32 %block, 128
  %element = add i32 %first, %lane
  %index = zext i32 %element to i64
{loads}
  %y = call {type_} @{called.symbol}({operands})
  %o = getelementptr {type_}, ptr addrspace(1) %p{count}, i64 %index
  store {type_} %y, ptr addrspace(1) %o
  ret void
}}
"""


def _count(ptx: str) -> int:
    """Lines that are instructions: not directives, labels, braces or comments."""
    body = re.findall(r"^\s+(?:@%?!?\w+\s+)?([a-z][\w.:]*)\b.*;", ptx, re.M)
    return len([opcode for opcode in body if not opcode.startswith(("param", "reg"))])


def compile_ptx(key: str, arch: str = "sm_90a") -> Compiled:
    """PTX of a kernel around `key`. Instructions that the empty kernel has too are not counted."""
    machine = _machine(arch)
    called = function(key)
    text = _kernel_text(called) + definitions([key])
    module = llvm.parse_assembly(text)
    module.triple = "nvptx64-nvidia-cuda"
    module.data_layout = str(machine.target_data)
    module.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    ptx = machine.emit_assembly(module)
    entry = ptx[ptx.index(".visible .entry") :]
    overhead = 3 * called.arity + 9
    return Compiled(ptx, _count(entry.partition(".func")[0]) - overhead)


def ptxas() -> str | None:
    return shutil.which("ptxas")


def assemble(ptx: str, arch: str, folder: Path) -> str:
    """What ptxas says of registers, spills and stack. Raises CalledProcessError."""
    source = folder / "math.ptx"
    source.write_text(ptx)
    done = subprocess.run(
        ["ptxas", f"-arch={arch}", "-v", str(source), "-o", str(folder / "math.cubin")],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stderr + done.stdout
