"""Modules of PTX: one random variable, function or directive each, asked of ptxas and of the interpreter.

`python -m tests.interpreter.modules [COUNT] [SEED]` compares COUNT of them (300) and prints where the two differ.
"""

from __future__ import annotations

import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from kernel_dsl.runtime.assemble import find_ptxas
from kernel_dsl.runtime.interpreter import parse
from kernel_dsl.runtime.interpreter.ptx.module import PtxError

from .launching import HEADER

Rng = random.Random
_TYPES = [
    "b8",
    "u8",
    "s8",
    "b16",
    "u16",
    "s16",
    "f16",
    "f16x2",
    "b32",
    "u32",
    "s32",
    "f32",
    "b64",
    "u64",
    "s64",
    "f64",
    "b128",
    "pred",
]
_LINKAGES = ("", "", ".visible", ".extern", ".weak", ".common")
_VALUES = (
    "0", "1", "-1", "0x7f", "300", "1.5", "-2.0", ".5", "0f3f800000", "0d3ff0000000000000", "y", "y+4", "generic(y)", "f", "1+2", "(1+2)*3",
    "1.0*2.0", "{1}", "{}", "WARP_SZ", "z", "-(1)", "~0", "1?2:3",
)  # fmt: skip
_BODIES = ("{ ret; }", "{ }", ";", "{ bra L; L: ret; }", "{ .reg .b32 a; }", "{ exit; }", "{ .shared .b32 q; }")
_DIRECTIVES = (
    "", "", "", ".noreturn", ".maxntid 32", ".maxntid 32,4", ".reqntid 16, 2, 1", ".minnctapersm 2", ".maxntid 32 .minnctapersm 2",
    ".maxnreg 32", ".reqnctapercluster 2", ".explicitcluster", ".explicitcluster .reqnctapercluster 2", ".maxclusterrank 4", ".maxntid 0",
    ".maxntid 1,1,1,1", ".maxntid 64 .reqntid 32", ".blocksareclusters .reqntid 8 .reqnctapercluster 2", ".blocksareclusters .reqntid 8",
    ".abi_preserve 8", ".abi_preserve_control 11", ".abi_preserve_control 12", ".abi_preserve 240", ".noreturn .abi_preserve 1",
    ".abi_preserve 1 .noreturn", ".abi_preserve 3 .abi_preserve 3", ".maxnctapersm 2", '.pragma "nounroll";', '.pragma "z";',
    '.pragma "frequency 3";', ".attribute(.unified(1, 2))",
)  # fmt: skip
_PRAGMAS = (
    "nounroll", "unroll", "frequency 3", "frequency 0", "frequency x", "frequency", "used_bytes_mask 0x3", "used_bytes_mask",
    "used_bytes_mask 1 2", "enable_smem_spilling", "enable_smem_spilling 1", "abi_param_reg all", "", "nounroll ",
)  # fmt: skip
_ATTRIBUTES = (
    ".attribute(.managed)", ".attribute(.managed)", ".attribute(.unified(1, 2))", ".attribute(.managed, .managed)", ".attribute()",
)  # fmt: skip
_VERSIONS = ("8.2", "8.6", "8.6", "8.7", "9.0")
_OTHERS = (
    '.file 1 "a.cu"', '.file 1 "a.cu", 5, 6', '.file "a"', '.pragma "nounroll";', ".pragma x;", ".section .debug_x { .b8 1 }", ".alias a, f;",
    ".alias f, f;", ".func a();\n.alias a, f;", ".alias q, nope;", ";", ".version 8.6", ".address_size 32", "/* */", '# 1 "x.cu"', "# 1",
    ".visible .global .b32 w; .visible .global .b32 w;", ".extern .global .b32 w; .global .b32 w = 3;", ".common .global .b32 w;",
    ".extern .global .b32 w; .weak .global .b32 w = 3;", ".global .b32 a, b[2], c;", ".global .b32 a = 1, b = 2;", ".const .b8 z9[70000];",
    ".const .b8 z9[65536];", ".global .texref t;", ".func g(); .visible .func g() { ret; }", ".visible .func g(); .func g() { ret; }",
)  # fmt: skip


def _initial(rng: Rng, extents: list[int], lanes: int) -> str:
    if extents:
        return "{" + ", ".join(_initial(rng, extents[1:], lanes) for _ in range(rng.randrange(4))) + "}"
    if lanes and rng.random() < 0.8:
        return "{" + ", ".join(rng.choice(_VALUES) for _ in range(lanes)) + "}"
    return rng.choice(_VALUES)


def _variable(rng: Rng) -> str:
    space = rng.choice((".global", ".global", ".const", ".shared", ".local", ".param", ".reg"))
    lanes, extents = rng.choice((0, 0, 0, 2, 4)), [rng.choice((1, 2, 3)) for _ in range(rng.choice((0, 0, 1, 1, 2)))]
    words = [rng.choice(_LINKAGES), space, rng.choice(("", "", "", rng.choice(_ATTRIBUTES)))]
    words += [f".align {rng.choice((1, 2, 4, 16, 3, 0))}"] * (rng.random() < 0.5) + [f".v{lanes}"] * bool(lanes)
    shape = "".join(f"[{n}]" for n in extents)
    if extents and rng.random() < 0.1:
        shape = "[]" + shape[shape.index("]") + 1 :]
    value = f" = {_initial(rng, extents, lanes)}" if rng.random() < 0.5 else ""
    name = rng.choice(("x", "x", "$x", "_x", "%x", "y", "f"))
    return f"{' '.join(w for w in words if w)} .{rng.choice(_TYPES)} {name}{shape}{value};"


def _parameter(rng: Rng, number: int) -> str:
    type_, pointer = (
        rng.choice(_TYPES),
        rng.choice((".ptr", ".ptr .global .align 8", ".ptr .align 4", ".ptr .align 8 .global")),
    )
    return rng.choice((
        f".param .{type_} p{number}", f".param .align {rng.choice((1, 4, 8, 3))} .b8 p{number}[{rng.choice((1, 4, 16, 0))}]",
        f".reg .{type_} p{number}", f".param .u64 {pointer} p{number}", f".param .v2 .b32 p{number}", f".param .b32 p{number}[]",
    ))  # fmt: skip


def _function(rng: Rng) -> str:
    kind, name = rng.choice((".func", ".func", ".entry")), rng.choice(("g", "g", "f", "x", "y"))
    results = rng.choice(("", "(.param .b32 r)", "(.reg .b32 r)", "(.param .b32 r, .param .b32 r2)", "()"))
    parameters = ", ".join(_parameter(rng, n) for n in range(rng.randrange(3)))
    directives, body = rng.choice(_DIRECTIVES), rng.choice(_BODIES)
    if rng.random() < 0.05:
        kind = f"{kind} {rng.choice((*_ATTRIBUTES, '.noreturn', '.maxntid 8'))}"
    return (
        f"{rng.choice(_LINKAGES)} {kind} {results if kind[1] == 'f' else ''} {name}({parameters}) {directives} {body}"
    )


def _pragma(rng: Rng) -> str:
    texts = ", ".join(f'"{rng.choice(_PRAGMAS)}"' for _ in range(rng.choice((1, 1, 2))))
    if "bytes" not in texts and rng.random() < 0.3:  # ptxas drops a function that nobody calls, and its masks unread
        return f".func g() {{ .pragma {texts}; ret; }}"
    return rng.choice(("{}", ".entry g() {{ {} ret; }}", ".entry g() {} {{ ret; }}")).format(f".pragma {texts};")


def module(rng: Rng) -> str:
    """The text of a module beside a variable y, a function f and an entry k."""
    made = rng.choice((_variable, _variable, _function, _function, _pragma, lambda rng: rng.choice(_OTHERS)))(rng)
    header = HEADER.replace("8.6", rng.choice(_VERSIONS))
    return f"{header}.global .b32 y[2];\n.func f() {{ ret; }}\n{made}\n.visible .entry k() {{ ret; }}\n"


# What ptxas takes where the ISA has nothing: addresses in 32 bits, and initial values of halves. And functions with any number of
# arguments (PTX ISA 7.2), which are not interpreted; and any parameters of a function that is only declared.
_LAX = re.compile(
    r".*\.f16(x2)? .* = |.*\.[bu](8|16|32) .* = .*(generic|\by\b|\bf\b)|.*\.func.*\.param [^,]* p\d\[0?\]\)|\.extern .*\.param \.v2"
)


def differences(count: int, seed: int) -> tuple[int, list[str]]:
    """(how many ptxas takes, where the two differ) of `count` modules."""
    rng, taken, found = random.Random(seed), 0, list[str]()
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(count):
            text = module(rng)
            (Path(folder) / "x.ptx").write_text(text)
            command = [str(find_ptxas()), "-arch=sm_90a", "x.ptx", "-o", "x.cubin"]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
            ours = ""
            try:
                parse(text)
            except PtxError as error:
                ours = str(error)
            taken += done.returncode == 0
            line = " ".join(text.splitlines()[5:-1])
            if bool(ours) != bool(done.returncode) and not (ours and _LAX.match(line)):
                found.append(f"{line}   ptxas: {done.stderr or 'takes it'}; interpreter: {ours or 'takes it'}")
    return taken, found


if __name__ == "__main__":
    number = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    assembled, unequal = differences(number, int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    print("\n".join(unequal))
    print(f"{len(unequal)} of {number} differ; ptxas takes {assembled}")
    sys.exit(bool(unequal))
