"""Targets lack what ptxas says they lack: forms of every row, for targets from sm_75 to sm_120a."""

from __future__ import annotations

import random
import subprocess
from typing import Any

import pytest

from kernel_dsl.runtime.assemble import find_ptxas
from kernel_dsl.runtime.interpreter import PtxError, check_program, parse

from . import forms

TARGETS = ("sm_75", "sm_80", "sm_89", "sm_90", "sm_100", "sm_100a", "sm_120a")


def right(each: int, seed: int) -> list[str]:
    """Up to `each` forms of every row that sm_90a has."""
    rng = random.Random(seed)
    found: list[str] = []
    for row in forms.ALL:
        mine: list[str] = []
        for _ in range(8 * each):
            words = {s.name: "" if s.optional and rng.random() < 0.5 else rng.choice(s.words) for s in row.slots}
            line = forms._text(rng, row, words, [w for w in words.values() if w])  # pyright: ignore
            if len(mine) < each and not forms.takes(line):
                mine.append(line)
        found += mine
    return [line for line, why in zip(found, forms.assembled(found), strict=True) if not why]


def compared(lines: list[str], target: str, monkeypatch: pytest.MonkeyPatch) -> tuple[int, list[str]]:
    """(how many ptxas refuses for the target, where the two differ)."""
    run = subprocess.run

    def for_target(command: list[str], **options: Any) -> Any:
        return run([word.replace("sm_90a", target) for word in command], **options)

    with monkeypatch.context() as patch:
        patch.setattr(forms, "HEAD", forms.HEAD.replace("sm_90a", target).replace("8.6", "8.8"))
        patch.setattr(subprocess, "run", for_target)
        theirs = forms.assembled(lines)
        ours = [forms.takes(line) for line in lines]
    both = zip(lines, theirs, ours, strict=True)
    return sum(map(bool, theirs)), [f"{x}: ptxas {a!r}, we {b!r}" for x, a, b in both if bool(a) != bool(b)]


def test_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = right(1, 0)
    refused = {}
    for target in ("sm_75", "sm_80", "sm_90"):
        refused[target], differ = compared(lines, target, monkeypatch)
        assert differ == []
    assert refused["sm_75"] > refused["sm_80"] > refused["sm_90"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_forms_of_every_row(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert compared(right(12, 9), target, monkeypatch)[1] == []


# What sm_100 adds to elementwise instructions: "+" what ptxas takes for it.
NEWER = """
+max.f32 f1, f2, f3, f4;
+min.ftz.NaN.abs.f32 f1, f2, f3, f4;
-max.NaN.xorsign.abs.f32 f1, f2, f3, f4;
-max.abs.f32 f1, f2, f3;
-max.f16 h1, h2, h3, h4;
+add.f32.f16 f1, h1, f2;
+sub.rz.sat.f32.bf16 f1, h1, f2;
-add.ftz.f32.f16 f1, h1, f2;
-mul.rn.f32.f16 f1, h1, f2;
+fma.rz.sat.f32.f16 f1, h1, h2, f2;
-fma.f32.f16 f1, h1, h2, f2;
+fma.rn.ftz.f32x2 d1, d2, d3, d4;
"""


@pytest.mark.skipif(find_ptxas() is None, reason="ptxas is not installed")
def test_what_newer_targets_add(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = NEWER.split("\n")[1:-1]
    refused, differ = compared([line[1:] for line in lines], "sm_100", monkeypatch)
    assert differ == [] and refused == sum(line[0] == "-" for line in lines)
    refused, differ = compared([line[1:] for line in lines], "sm_90", monkeypatch)
    assert differ == [] and refused == len(lines)


# Special registers, and what a microscaled format is converted from and to.
SPECIALS = [
    "%tid.x", "%ntid.y", "%laneid", "%warpid", "%nwarpid", "%ctaid.z", "%nctaid.x", "%smid", "%nsmid", "%gridid",
    "%lanemask_eq", "%lanemask_ge", "%clock", "%clock_hi", "%clock64", "%globaltimer", "%globaltimer_lo",
    "%clusterid.x", "%nclusterid.y", "%cluster_ctaid.z", "%cluster_nctaid.x", "%cluster_ctarank",
    "%cluster_nctarank", "%is_explicit_cluster", "%total_smem_size", "%dynamic_smem_size", "%aggr_smem_size",
    "%reserved_smem_offset_begin", "%reserved_smem_offset_0", "%current_graph_exec", "%envreg0", "%pm0",
]  # fmt: skip
_WIDE = ("%clock64", "%globaltimer", "%gridid", "%current_graph_exec")
MICROSCALED = [
    *(
        "cvt.rn.satfinite.e2m1x2.f32 h1, f1, f2;",
        "cvt.rn.satfinite.relu.e2m3x2.f32 h1, f1, f2;",
        "cvt.rn.e3m2x2.f32 h1, f1, f2;",
    ),
    *("{ .reg .b8 t; cvt.rn.satfinite.e2m1x2.f32 t, f1, f2; }", "{ .reg .b8 t; cvt.rn.satfinite.e2m1x2.f16x2 t, r1; }"),
    *(
        "{ .reg .b8 t; mov.b16 {t, _}, h1; cvt.rn.f16x2.e2m1x2 r2, t; }",
        "cvt.rn.relu.f16x2.e2m3x2 r1, h1;",
        "cvt.rn.bf16x2.e2m3x2 r1, h1;",
    ),
    *("cvt.rz.ue8m0x2.f32 h1, f1, f2;", "cvt.rn.ue8m0x2.f32 h1, f1, f2;", "cvt.rp.satfinite.ue8m0x2.bf16x2 h1, r2;"),
    *("cvt.rn.bf16x2.ue8m0x2 r1, h1;", "cvt.rn.relu.bf16x2.ue8m0x2 r1, h1;", "cvt.rz.ue8m0x2.f16x2 h1, r2;"),
]


@pytest.mark.skipif(find_ptxas() is None, reason="ptxas is not installed")
@pytest.mark.parametrize("target", ["sm_75", "sm_80", "sm_90", "sm_100", "sm_100a", "sm_120a"])
def test_special_registers_and_microscaled_formats(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [
        f"mov.{'u64 d2' if name in _WIDE else 'pred q1' if name.startswith('%is') else 'u32 r2'}, {name};"
        for name in SPECIALS
    ]
    refused, differ = compared([*lines, *MICROSCALED], target, monkeypatch)
    assert differ == [] and 0 < refused < len(lines) + len(MICROSCALED)


WGMMA = "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {f1, f2, f3, f4}, d1, d2, 1, 1, 1, 0, 0;"


@pytest.mark.parametrize("line", [WGMMA, "wgmma.fence.sync.aligned;"])
def test_wgmma_is_of_one_target(line: str) -> None:
    def takes(target: str) -> bool:
        try:
            check_program(parse(forms.HEAD.replace("sm_90a", target) + line + " ret;\n}\n"), "k", target)
        except PtxError as error:
            assert "sm_90a" in str(error) and error.line == forms.HEAD.count("\n") + 1
            return False
        return True

    assert [takes(t) for t in ("sm_90a", "sm_90", "sm_100a", "sm_80")] == [True, False, False, False]
