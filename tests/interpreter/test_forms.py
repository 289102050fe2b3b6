"""ptxas and the interpreter take and refuse the same instructions; every row has a builder, and the table is what is read."""

from __future__ import annotations

import pytest

from kernel_dsl.runtime.assemble import find_ptxas
from kernel_dsl.runtime.interpreter.isa.instructions import ROWS
from kernel_dsl.runtime.interpreter.machine.builders import families
from kernel_dsl.runtime.interpreter.machine.program import BUILDERS

from . import forms, orders

needs_ptxas = pytest.mark.skipif(find_ptxas() is None, reason="ptxas is not installed")


def test_every_row_has_a_builder() -> None:
    assert families.BUILDERS
    assert set(ROWS) == set(BUILDERS)


@needs_ptxas
def test_a_sample_of_forms() -> None:
    taken, unequal = forms.differences(400, seed=0)
    assert not unequal, "\n".join(unequal)
    assert taken > 100


@needs_ptxas
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 5))
def test_many_forms(seed: int) -> None:
    _, unequal = forms.differences(2000, seed)
    assert not unequal, "\n".join(unequal)


@needs_ptxas
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 4))
def test_operands_in_the_place_of_others(seed: int) -> None:
    taken, unequal = forms.compared(forms.with_others(seed))
    assert not unequal, "\n".join(unequal)
    assert taken > 100


@needs_ptxas
def test_modifiers_in_other_orders() -> None:
    taken, unequal = orders.differences(200, seed=0)
    assert not unequal, "\n".join(unequal)
    assert taken > 50


@needs_ptxas
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 4))
def test_many_modifiers_in_other_orders(seed: int) -> None:
    _, unequal = orders.differences(2000, seed)
    assert not unequal, "\n".join(unequal)


# What users wrote, and what the generator found when it was new: "+" what ptxas takes.
KNOWN = """
-createpolicy.range.L2::evict_last.L2::evict_first.b64 d1, [64], r3, r4;
-prefetch.global.L2 [r1];
+prefetch.local.L2 [64];
-tensormap.replace.tile.box_dim.shared::cta.b1024.b32 [r1], 1, f3;
+tensormap.replace.tile.rank.shared::cta.b1024.b32 [r1], f3;
-tensormap.replace.tile.swizzle_atomicity.shared::cta.b1024.b32 [r1], 0;
+multimem.st.global.f32 [d1], {f3};
+multimem.st.global.f32 [d1], {0f3F800000};
-multimem.st.global.b32 [d1], {r3};
-multimem.st.global.f16x2 [d1], {1};
+multimem.ld_reduce.global.add.bf16x2 {r3}, [d1];
-multimem.ld_reduce.global.add.f32 {_}, [d1];
-multimem.red.global.add.f32 [d1], {f3};
+ld.v2.global.u32 {r3, r4}, [d1];
-ld.global.nc.volatile.u32 r3, [d1];
-ld.global.L1::nonsense.u32 r3, [d1];
-ld.global.L2::77B.u32 r3, [d1];
-ld.global.ca.cg.u32 r3, [d1];
-ld.acquire.gpu.local.u32 r3, [r1];
+ld.global.b32 { r3 }, [ d1 + 0 ];
+st.global.b32 [ d1 + 0 ], { r3 };
-st.global.v2.b32 [d1], {r2, _};
-st.acquire.gpu.global.u32 [d1], r2;
+atom.global.u32.add r3, [d1], r2;
-atom.global.min.f32 f1, [d1], f2;
-atom.global.add.s64 d3, [d1], d2;
+atom.global.cas.b128 w1, [d1], w2, w3;
+atom.global.exch.b128 w1, [d1], w2;
-mbarrier.init.parity.shared::cta.b64 [r1], r2;
-mbarrier.arrive.shared.b64 [r1];
-mbarrier.arrive.shared::cluster.b64 d3, [r1];
-bar.sync.aligned 0;
-bar.sync 16;
-bar.sync 0, 33;
+barrier.aligned.sync 0;
-barrier.aligned.arrive 0, 32;
-barrier.cluster.wait.release;
+fence.gpu.acq_rel;
-prefetch [d1];
-discard.global.L2 [d1], 64;
+redux.sync.u32.add r3, r2, -1;
+shfl.idx.sync.b32 r3, r2, 0, 31, -1;
+cp.async.ca.L2::128B.shared.global [r1], [d1], 16, !q1;
-cp.async.bulk.shared::cta.shared::cta.mbarrier::complete_tx::bytes [r1], [r3], 16, [r4];
+cp.async.bulk.tensor.shared::cluster.global.2d.tile.mbarrier::complete_tx::bytes [r1], [d1, {r2, r3}], [r4];
-ld.u32 r3, [p];
-ld.global.u32 r3, [s];
"""


@needs_ptxas
def test_known_forms() -> None:
    lines = KNOWN.split("\n")[1:-1]
    for line, theirs in zip(lines, forms.assembled([line[1:] for line in lines]), strict=True):
        assert bool(theirs) == (line[0] == "-"), (line, theirs)
        assert bool(forms.takes(line[1:])) == (line[0] == "-"), (line, forms.takes(line[1:]))
