"""ptxas and the interpreter take the same forms of tcgen05 and other instructions of sm_100: every shape, kind and operand list.

`python -m tests.interpreter.test_tensor_forms` prints where the two differ.
"""

from __future__ import annotations

import itertools
import random

import pytest

from kernel_dsl.runtime.assemble import find_ptxas

from . import forms

GROUPS = (".cta_group::1", ".cta_group::2")
SHAPES = ("16x64b", "16x128b", "16x256b", "32x32b", "16x32bx2")
KINDS = ("f16", "tf32", "f8f6f4", "i8", "mxf8f6f4", "mxf4", "mxf4nvf4")
SIZES = ("", ".scale_vec::1X", ".scale_vec::2X", ".scale_vec::4X", ".block16", ".block32")
COLLECT = ("", ".collector::a::fill", ".collector::a::use", ".collector::a::lastuse", ".collector::a::discard")


def registers(count: int) -> str:
    return "{" + ", ".join(f"r{i % 8 + 1}" for i in range(count)) + "}"


def management() -> list[str]:
    found: list[str] = []
    for group in (*GROUPS, ""):
        for count in ("32", "64", "33", "16", "512", "1024", "r2"):
            found += [f"tcgen05.alloc{group}.sync.aligned{space}.b32 [{at}], {count};"
                      for space, at in ((".shared::cta", "r1"), (".shared::cta", "s"), ("", "d1"), (".shared", "r1"))]  # fmt: skip
            found.append(f"tcgen05.dealloc{group}.sync.aligned.b32 r1, {count};")
        found.append(f"tcgen05.relinquish_alloc_permit{group}.sync.aligned;")
        for space, more, mask in itertools.product(
            ("", ".shared::cluster", ".shared::cta"), ("", ".multicast::cluster"), ("", ", h1", ", r1")
        ):
            at = "r1" if space else "d1"
            found.append(f"tcgen05.commit{group}.mbarrier::arrive::one{space}{more}.b64 [{at}]{mask};")
    for way in ("before_thread_sync", "after_thread_sync", "thread_sync"):
        found += [f"tcgen05.fence::{way};", f"tcgen05.fence::{way}.sync;"]
    for kind in ("ld", "st", "mma"):
        found += [f"tcgen05.wait::{kind}.sync.aligned;", f"tcgen05.wait::{kind};"]
    return found


def moves() -> list[str]:
    found: list[str] = []
    for shape, num in itertools.product(SHAPES, (1, 2, 4, 8, 16, 32, 64, 128)):
        per = {"16x128b": 2, "16x256b": 4}.get(shape, 1)
        for count, split, pack in itertools.product((per * num, per * num + 1), ("", "16"), (False, True)):
            if count > 128 and (split or pack):
                continue
            name = f"sync.aligned.{shape}.x{num}"
            half = f", {split}" if split else ""
            found.append(f"tcgen05.ld.{name}{'.pack::16b' if pack else ''}.b32 {registers(count)}, [r1]{half};")
            found.append(f"tcgen05.st.{name}{'.unpack::16b' if pack else ''}.b32 [r1]{half}, {registers(count)};")
    found += ["tcgen05.ld.sync.aligned.32x32b.x1.b32 r1, [r2];", "tcgen05.st.sync.aligned.32x32b.x1.b32 [r2], r1;"]
    found += [
        "tcgen05.ld.sync.aligned.32x32b.x1.b32 {r1}, [d2];",
        "tcgen05.ld.sync.aligned.32x32b.x1.b32 {r1}, [r2+16];",
        "tcgen05.ld.sync.aligned.32x32b.x2.b32 {r1, _}, [r2];",
    ]
    return found


def products() -> list[str]:
    found: list[str] = []
    for group, kind, size, scaled in itertools.product(GROUPS, KINDS, SIZES, (False, True)):
        for a, more in itertools.product(("d1", "[r2]", "r2"), ("", ", [r3], [r4]")):
            name = f"tcgen05.mma{group}.kind::{kind}{'.block_scale' if scaled else ''}{size}"
            found.append(f"{name} [r1], {a}, d2, r5{more}, q1;")
    for group, kind, a, lanes, scale in itertools.product(
        GROUPS, KINDS[:4], ("d1", "[r2]"), ("", ", " + registers(4), ", " + registers(8)), ("", ", 3", ", 16", ", r1")
    ):
        found.append(f"tcgen05.mma{group}.kind::{kind} [r1], {a}, d2, r5{lanes}, q1{scale};")
    for use, a in itertools.product(COLLECT, ("d1", "[r2]")):
        found.append(f"tcgen05.mma.cta_group::1.kind::f16{use} [r1], {a}, d2, r5, q1;")
        found.append(f"tcgen05.mma.cta_group::1.kind::mxf4.block_scale.block32{use} [r1], {a}, d2, r5, [r3], [r4], q1;")
    found += ["tcgen05.mma.cta_group::1.kind::f16 [r1], d1, d2, r5, !q1;", "tcgen05.mma.cta_group::1.kind::f16 [r1], d1, d2, r5, 1;",
              "tcgen05.mma.cta_group::1.kind::f16 [d1], d1, d2, r5, q1;", "tcgen05.mma.cta_group::1.kind::f16 [r1], d1, d2, d5, q1;",
              "tcgen05.mma.kind::f16 [r1], d1, d2, r5, q1;", "tcgen05.mma.kind::f16.cta_group::1 [r1], d1, d2, r5, q1;"]  # fmt: skip
    return found


def sparse() -> list[str]:
    """The forms of products, with metadata."""
    found: list[str] = []
    for line in products():
        name, operands = line.replace("tcgen05.mma.", "tcgen05.mma.sp.").split(" ", 1)
        first = operands.split(", ")
        found.append(f"{name} {', '.join([*first[:3], '[r6]', *first[3:]])}")
    name = "tcgen05.mma.sp.cta_group::1.kind::f16 [r1], d1, d2"
    return [*found, f"{name}, r5, q1;", f"{name}, r6, r5, q1;", f"{name}, [d6], r5, q1;"]


def reducing_loads() -> list[str]:
    found: list[str] = []
    for shape, num, operation, how, type_ in itertools.product(
        ("32x32b", "16x32bx2", "16x64b"), (1, 2, 4, 128), ("min", "max", "add"), ("", ".abs", ".NaN", ".abs.NaN", ".NaN.abs"),
        ("f32", "u32", "s32", "b32"),
    ):  # fmt: skip
        half = ", 16" if shape == "16x32bx2" else ""
        found.append(
            f"tcgen05.ld.red.sync.aligned.{shape}.x{num}.{operation}{how}.{type_} {registers(num)}, r9, [r1]{half};"
        )
    name = "tcgen05.ld.red.sync.aligned.32x32b.x2"
    results = ("f1", "d1", "_", "{r9}", "{_}", "{r9, r10}")
    found += [f"{name}.min.f32 {{r1, r2}}, {result}, [r1];" for result in results]
    return [*found, f"{name}.min.f32 {{r1, _}}, r9, [r1];", f"{name}.f32.min {{r1, r2}}, r9, [r1];",
            f"{name}.pack::16b.min.f32 {{r1, r2}}, r9, [r1];", f"{name}.min.f32 {{r1}}, r9, [r1];"]  # fmt: skip


def stationary() -> list[str]:
    found: list[str] = []
    uses = ("", ".collector::b0::fill", ".collector::b3::lastuse", ".collector::a::fill", ".collector::b4::use")
    for group, kind, use, a, mask in itertools.product(
        (*GROUPS, ""), (*KINDS[:4], "mxf4"), uses, ("d1", "[r2]"), ("", ", d3", ", 0", ", r3")
    ):
        found.append(f"tcgen05.mma.ws{group}.kind::{kind}{use} [r1], {a}, d2, r5, q1{mask};")
    name = "tcgen05.mma.ws.cta_group::1.kind::f16"
    found += [f"{name} [r1], d1, d2, r5, !q1, d3;", f"{name}.ashift [r1], [r2], d2, r5, q1;", f"{name} [r1], d1, d2, r5, 1;",
              f"{name} [r1], d1, d2, r5, q1, 7;", "tcgen05.mma.ws.kind::f16.cta_group::1 [r1], d1, d2, r5, q1;"]  # fmt: skip
    return found


def copies() -> list[str]:
    shapes = ("128x256b", "128x128b", "64x128b", "32x128b", "16x128b")
    casts = ("", ".warpx2::02_13", ".warpx2::01_23", ".warpx4")
    return [f"tcgen05.cp{g}.{s}{c} [r1], d1;" for g, s, c in itertools.product((*GROUPS, ""), shapes, casts)]


def rows_of_tensors() -> list[str]:
    found: list[str] = []
    for dim, mode, count in itertools.product("12345", ("gather4", "scatter4"), (2, 4, 5)):
        at = "[d1, {" + ", ".join(f"r{i}" for i in range(1, count + 1)) + "}]"
        for space, more, group in itertools.product(("cluster", "cta"), ("", ".multicast::cluster"), ("", *GROUPS)):
            mask = ", h1" if more else ""
            done = f"mbarrier::complete_tx::bytes{more}{group}"
            found.append(
                f"cp.async.bulk.tensor.{dim}d.shared::{space}.global.tile::{mode}.{done} [s], {at}, [r2]{mask};"
            )
        found += [f"cp.async.bulk.tensor.{dim}d.global.shared::cta.tile::{mode}.bulk_group {at}, [s];",
                  f"cp.reduce.async.bulk.tensor.{dim}d.global.shared::cta.add.tile::{mode}.bulk_group {at}, [s];",
                  f"cp.async.bulk.prefetch.tensor.{dim}d.L2.global.tile::{mode} {at};"]  # fmt: skip
    return found


def launches() -> list[str]:
    name, found = "clusterlaunchcontrol", list[str]()
    for space, done, to_all, ops in itertools.product(
        ("", ".shared::cta", ".shared", ".shared::cluster"), (".mbarrier::complete_tx::bytes", ""),
        ("", ".multicast::cluster::all", ".multicast::cluster"), ("[r1], [r2]", "[s], [s+16]", "[d1], [d2]", "[r1]")
    ):  # fmt: skip
        found.append(f"{name}.try_cancel.async{space}{done}{to_all}.b128 {ops};")
    for first, vector, to in itertools.product(
        ("", "::x", "::y", "::z", "::w"), (".v4", ".v2", ""), ("{r1,r2,r3,_}", "{r1,r2}", "r1", "_", "{r1}", "f1", "d1")
    ):
        found.append(f"{name}.query_cancel.get_first_ctaid{first}{vector}.b32.b128 {to}, w1;")
    found += [f"{name}.query_cancel.is_canceled.{types} {ops};"
              for types in ("pred.b128", "b128.pred", "b128") for ops in ("q1, w1", "_, w1", "q1, d1", "r1, w1")]  # fmt: skip
    return [*found, f"{name}.query_cancel.get_first_ctaid::x.b128.b32 r1, w1;"]


def differences(lines: list[str], target: str) -> list[str]:
    unequal: list[str] = []
    for line, theirs in zip(lines, forms.assembled(lines, target), strict=True):
        ours = forms.takes(line, target)
        if bool(ours) != bool(theirs) and "is not supported" not in ours:
            unequal.append(f"{target} {line[:150]}   ptxas: {theirs or 'takes it'}; interpreter: {ours or 'takes it'}")
    return unequal


LISTS = {
    "management": management,
    "moves": moves,
    "products": products,
    "stationary": stationary,
    "sparse": sparse,
    "reducing loads": reducing_loads,
    "copies": copies,
    "launches": launches,
    "rows": rows_of_tensors,
}
TARGETS = ("sm_100a", "sm_103a", "sm_90a", "sm_100f", "sm_120a")


@pytest.mark.skipif(find_ptxas() is None, reason="ptxas is not installed")
@pytest.mark.parametrize("target", TARGETS)
def test_a_sample(target: str) -> None:
    lines = [x for made in LISTS.values() for x in made()]
    assert differences(random.Random(target).sample(lines, 60), target) == []


@pytest.mark.slow
@pytest.mark.skipif(find_ptxas() is None, reason="ptxas is not installed")
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", LISTS)
def test_all(name: str, target: str) -> None:
    assert differences(LISTS[name](), target) == []


if __name__ == "__main__":
    for name, made in LISTS.items():
        for target in TARGETS[:3]:
            print(name, target, len(made()))
            print("\n".join(differences(made(), target)[:25]), flush=True)
