"""Declarations, literals and operands of PTX: made by a grammar of their own, and asked of ptxas and of the interpreter.

`forms.py` makes instructions from the interpreter's rows, so it knows the words that the rows know. What is here stands
beside the rows: types and names of registers, vectors of registers, special registers as scalars and vectors, literals of each
kind and base and expressions of them, constant operands at the edges of their fields, calls, and labels.

`python -m tests.interpreter.texts [COUNT] [SEED]` compares COUNT of them (400) and prints where the two differ.
"""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Callable

from .forms import compared

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
    "bf16",
    "tf32",
    "f32x2",
    "e4m3",
    "u16x2",
    "texref",
]
_LETTERS = {"16": "h", "32": "r", "64": "d"}
_VECTORS = ["tid", "ntid", "ctaid", "nctaid", "clusterid", "nclusterid", "cluster_ctaid", "cluster_nctaid"]
_SCALARS = [
    "laneid",
    "warpid",
    "nwarpid",
    "smid",
    "nsmid",
    "gridid",
    "cluster_ctarank",
    "cluster_nctarank",
    "clock",
    "clock_hi",
    "clock64",
    "globaltimer",
    "globaltimer_lo",
    "lanemask_eq",
    "lanemask_ge",
    "pm0",
    "pm7",
    "pm8",
    "pm3_64",
    "envreg0",
    "envreg31",
    "envreg32",
    "dynamic_smem_size",
    "total_smem_size",
    "is_explicit_cluster",
    "current_graph_exec",
    "reserved_smem_offset_1",
    "reserved_smem_offset_2",
]


def _spaced(rng: Rng, *parts: str) -> str:
    """Join words in their order, or sometimes in another."""
    words = [p for p in parts if p]
    if rng.random() < 0.1:
        rng.shuffle(words)
    return " ".join(words)


def _declaration(rng: Rng) -> str:
    """A register, or a variable of a function, with an access."""
    type_ = rng.choice(_TYPES)
    lanes = rng.choice(("", "", ".v2", ".v4", ".v3"))
    align = rng.choice(("", "", f".align {rng.choice((0, 1, 2, 3, 4, 8, 16, 1024))}"))
    space = rng.choice((".reg", ".reg", ".reg", ".local", ".shared"))
    name = rng.choice(("x", "x<3>", "x, y", "%x", "x0<2>", "$x"))
    if space != ".reg":
        name = name.replace("<3>", "[3]").replace("<2>", "[2][2]")
    return f"{{ {space} {_spaced(rng, align, lanes, '.' + type_)} {name}; }}"


def _name(rng: Rng) -> str:
    """Registers of a range, with zeros before their numbers."""
    digits = "0" * rng.randrange(3) + str(rng.choice((0, 1, 4, 5, 9)))
    other = rng.choice(
        ("", f".reg .b32 z{digits};", f".reg .b64 z{rng.randrange(6)};", ".reg .b64 z0<5>;", ".reg .b32 z<2>;")
    )
    declared = [".reg .b32 z<5>;", other]
    rng.shuffle(declared)
    return f"{{ {' '.join(declared)} mov.b32 z{digits}, 1; }}"


def _vector(rng: Rng) -> str:
    """A vector of registers, and one of its elements."""
    lanes, type_ = rng.choice((2, 4)), rng.choice(["b16", "u16", "b32", "u32", "s32", "f32", "b64", "f64", "f16"])
    letter = {"f32": "f", "f64": "g"}.get(type_, _LETTERS[type_[1:]])
    other = rng.choice((2, 4))
    group = "{" + ", ".join(f"{letter}{i + 1}" for i in range(other)) + "}"
    element = rng.choice("xyrgwazX")
    if lanes == 2 and element in "zbwa":  # ptxas takes elements that are not there
        element = "x"
    use = rng.choice((
        f"mov.{type_} {letter}1, v.{element};", f"mov.{type_} v.{element}, {letter}1;", f"mov.v{other}.{type_} v, {group};",
        f"mov.v{other}.{type_} {group}, v;", f"ld.global.v{other}.{type_} v, [d1];", f"st.global.v{other}.{type_} [d1], v;",
        "mov.b64 d1, v;", "mov.b64 v, d1;", "mov.b128 w1, v;", "mov.b32 r1, v;", f"add.{type_} v.x, v.y, {letter}1;",
        f"add.{type_} v, v, v;", f"mov.{type_} v, {letter}1;", f"ld.global.{type_} v.{element}, [d1];", "ld.shared.b32 r1, [v.x];",
        f"mov.v{lanes}.{type_} v, v;", f"mov.v{lanes}.{type_} v, {{v.y, v.x}};", f"selp.{type_} v.x, v.y, v.x, q1;",
    ))  # fmt: skip
    return f"{{ .reg .v{lanes} .{type_} v; {use} }}"


def _special(rng: Rng) -> str:
    """A special register, and a use of it."""
    if rng.random() < 0.5:
        name = "%" + rng.choice(_VECTORS)
        if rng.random() < 0.6:
            name += "." + rng.choice("xyzwrgba")
    else:
        name = "%" + rng.choice(_SCALARS)
    type_ = rng.choice(["b16", "u16", "s16", "b32", "u32", "s32", "b64", "u64", "s64", "f32", "f64", "b128"])
    letter = {"f32": "f", "f64": "g", "b128": "w"}.get(type_) or _LETTERS[type_[1:]]
    vector = name[1:] in _VECTORS  # ptxas splits a scalar into the elements of a vector
    uses = [
        f"mov.{type_} {letter}1, {name};", f"cvt.u64.u32 d1, {name};", f"cvt.u32.u64 r1, {name};", f"cvt.u16.u32 h1, {name};",
        f"cvt.rn.f32.u32 f1, {name};", f"add.u32 r1, r2, {name};", f"st.global.u32 [d1], {name};", f"setp.eq.u32 q1, r1, {name};",
        f"mov.u32 {name}, r1;", f"shl.b32 r1, r2, {name};", f"bar.sync {name};",
    ]  # fmt: skip
    if vector:
        uses += [
            f"mov.v4.{type_} {{{letter}1, {letter}2, {letter}3, {letter}4}}, {name};",
            f"mov.v2.u32 {{r1, r2}}, {name};",
        ] * 3
    return rng.choice(uses)


def _integer(rng: Rng) -> str:
    return rng.choice((
        "0", "7", "017", "08", "0x1F", "0XfU", "0b101", "0b2", "5U", "1u", "4294967295", "4294967296", "0x8000000000000000", "WARP_SZ",
        "18446744073709551615", "0xg", "1L", "00",
    ))  # fmt: skip


def _float(rng: Rng) -> str:
    return rng.choice((
        "0.5", ".5", "5.", "1e3", "1E+2", ".5e-3", "1.e1", "1e40", "1e309", "1e", "0.5f", "0f3F800000", "0d3FE0000000000000", "0f3F80000",
        "08.5", ".",
    ))  # fmt: skip


def _expression(rng: Rng, leaf: Callable[[Rng], str], depth: int = 0) -> str:
    """A constant expression. Operators of integers come between floats, too."""
    if depth > 2 or rng.random() < 0.4:
        return leaf(rng)
    kind = rng.random()
    inner = _expression(rng, leaf, depth + 1)
    if kind < 0.25:
        return f"({inner})"
    if kind < 0.5:
        return rng.choice("-+~!") + inner
    other = _expression(rng, leaf if rng.random() < 0.95 else _integer, depth + 1)
    if kind < 0.9:
        return (
            inner
            + rng.choice((" + ", "-", "*", "/", " % ", "<<", ">>", "<", ">=", "==", "&&", "||", "&", "|", "^"))
            + other
        )
    return f"{inner} ? {other} : {_expression(rng, leaf, depth + 1)}"


def _literal(rng: Rng) -> str:
    """An expression as an operand."""
    leaf = rng.choice((_integer, _float))
    value = _expression(rng, leaf)
    places = (
        "mov.u32 r1, {};", "mov.b64 d1, {};", "add.s32 r1, r2, {};", "mov.u16 h1, {};", "st.global.u32 [d1], {};", "setp.eq.u32 q1, r1, {};",
        "ld.global.u32 r1, [d1+{}];", "mov.pred q1, {};", "bar.sync ({}) & 7;", "{{ .local .b8 a[{}]; }}",
    ) if leaf is _integer else (
        "mov.f32 f1, {};", "mov.f64 g1, {};", "mov.b32 r1, {};", "mov.b64 d1, {};", "add.f32 f1, f2, {};", "st.global.f64 [d1], {};",
        "fma.rn.f32 f1, f2, {}, f3;", "selp.f32 f1, f2, {}, q1;", "setp.lt.f64 q1, g1, {};", "mov.u64 d1, {};", "mov.pred q1, {};",
    )  # fmt: skip
    return rng.choice(places).format(value)


_EDGES = (
    0,
    1,
    7,
    8,
    15,
    16,
    31,
    32,
    63,
    64,
    127,
    128,
    255,
    256,
    300,
    4095,
    65535,
    65536,
    1048560,
    1048576,
    -1,
    -16,
    4294967295,
)
_FIELDS = (
    "bfe.u32 r1, r2, {}, 4", "bfe.s64 d1, d2, 4, {}", "bfi.b32 r1, r2, r3, {}, 4", "bfi.b64 d1, d2, d3, 4, {}", "shl.b32 r1, r2, {}",
    "shr.s16 h1, h2, {}", "shf.l.wrap.b32 r1, r2, r3, {}", "prmt.b32 r1, r2, r3, {}", "lop3.b32 r1, r2, r3, r4, {}", "bar.sync {}",
    "shfl.sync.idx.b32 r1, r2, {}, 31, -1", "shfl.sync.up.b32 r1, r2, 0, {}, -1", "bar.sync 1, {}", "bar.arrive 1, {}", "barrier.sync {}, 64",
    "barrier.arrive {}, 64", "bar.warp.sync {}", "nanosleep.u32 {}", "setmaxnreg.inc.sync.aligned.u32 {}", "pmevent {}", "pmevent.mask {}",
    "cp.async.wait_group {}", "cp.async.bulk.wait_group.read {}", "wgmma.wait_group.sync.aligned {}", "alloca.u64 d1, 16, {}", "alloca.u64 d1, {}",
    "cp.async.ca.shared.global [r1], [d1], {}", "cp.async.cg.shared.global [r1], [d1], 16, {}", "mbarrier.init.shared.b64 [r1], {}",
    "mbarrier.arrive.shared.b64 d1, [r1], {}", "mbarrier.try_wait.parity.shared.b64 q1, [r1], {}", "mapa.shared::cluster.u32 r1, r2, {}",
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [r1], [d1], {}, [r2]", "cp.async.bulk.prefetch.L2.global [d1], {}",
    "cp.async.bulk.global.shared::cta.bulk_group [d1], [r1], {}", "mbarrier.arrive.expect_tx.shared.b64 d1, [r1], {}",
    "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [d1], [r1], {}", "discard.global.L2 [d1], {}", "fns.b32 r1, r2, 1, {}",
    "tensormap.replace.tile.elemtype.shared::cta.b1024.b32 [d1], {}", "tensormap.replace.tile.box_dim.shared::cta.b1024.b32 [d1], {}, 8",
    "fence.proxy.tensormap::generic.acquire.gpu [d1], {}", "bmsk.clamp.b32 r1, {}, 4", "mul.wide.u16 r1, h2, {}", "st.global.u8 [d1], {}",
)  # fmt: skip


def _field(rng: Rng) -> str:
    """A constant operand at the edge of its field."""
    return rng.choice(_FIELDS).format(rng.choice(_EDGES)) + ";"


def _fragment(rng: Rng) -> str:
    """A matrix instruction with registers of some type, in braces or not."""
    letter = rng.choice(("r", "r", "f", "u", "s", "x", "d"))
    declared = {"u": ".reg .u32 u<9>;", "s": ".reg .s32 s<9>;", "x": ".reg .f16x2 x<9>;"}.get(letter, "")

    def some(count: int, of: str = letter) -> str:
        found = ", ".join(f"{of}{i + 1}" for i in range(count if rng.random() < 0.95 else rng.choice((1, 2, 4))))
        return "{" + found + "}" if "," in found or rng.random() < 0.8 else found

    text = rng.choice((
        f"mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {some(4, 'f')}, {some(4)}, {some(2, 'r')}, {some(4, 'f')};",
        f"mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {some(4, 'f')}, {some(2, 'r')}, {some(1)}, {some(4, 'f')};",
        f"mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {some(2)}, {some(4, 'r')}, {some(2, 'r')}, {some(2)};",
        f"mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {some(4)}, {some(4, 'r')}, {some(2, 'r')}, {some(4)};",
        f"wmma.load.a.sync.aligned.row.m16n16k16.u8 {some(2)}, [d1];", f"wmma.load.a.sync.aligned.row.m16n16k16.bf16 {some(4)}, [d1];",
        f"wmma.load.c.sync.aligned.row.m16n16k16.f16 {some(4)}, [d1];", f"wmma.store.d.sync.aligned.row.m16n16k16.f32 [d1], {some(8)};",
        f"ldmatrix.sync.aligned.m8n8.x2.shared.b16 {some(2)}, [r1];", f"ldmatrix.sync.aligned.m8n8.x1.shared.b16 {some(1)}, [r1];",
        f"stmatrix.sync.aligned.m8n8.x4.shared.b16 [r1], {some(4)};", f"wgmma.mma_async.sync.aligned.m64n8k32.s32.s8.s8 {some(4)}, d1, d2, 1;",
        f"wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {some(4)}, d1, d2, 1, 1, 1, 0, 0;",
        f"wgmma.mma_async.sync.aligned.m64n8k16.f16.f16.f16 {some(2)}, {some(4, 'r')}, d2, 1, 1, 1, 0;",
        f"shfl.sync.bfly.b32 {some(1)}, r2, 1, 31, -1;", f"redux.sync.and.b32 {some(1)}, r2, -1;", f"movmatrix.sync.aligned.m8n8.trans.b16 {some(1)}, r2;",
        f"cp.async.bulk.tensor.1d.shared::cluster.global.mbarrier::complete_tx::bytes [r1], [d1, {some(1, 'r')}], [r3];",
    ))  # fmt: skip
    return f"{{ {declared} {text} }}"


KINDS = (_declaration, _name, _vector, _special, _literal, _literal, _field, _fragment)
# ptxas does not see that the register of a range with number 0 has a name that is declared before the range, and takes the
# bits of a float for those of a double in expressions.
_LAX = re.compile(r".*\.reg \.b\d\d z0; \.reg \.b\d\d z<|.*\(.*0f3F800000")


def text(rng: Rng) -> str:
    """One line of a body."""
    return rng.choice(KINDS)(rng)


def differences(count: int, seed: int) -> tuple[int, list[str]]:
    """(how many ptxas takes, where the two differ) of `count` lines."""
    rng = random.Random(seed)
    return compared([text(rng) for _ in range(count)], _LAX)


if __name__ == "__main__":
    number = int(sys.argv[1]) if len(sys.argv) > 1 else 400
    taken, unequal = differences(number, int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    print("\n".join(unequal))
    print(f"{len(unequal)} of {number} differ; ptxas takes {taken}")
    sys.exit(bool(unequal))
