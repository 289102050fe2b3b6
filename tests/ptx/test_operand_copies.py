"""Left sides in registers that a loop does not change: ptxas gives them to another product, and the PTX has copies against it."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.library import PackedInt4
from kernel_dsl.lowering.operand_copies import copy_operands

TILE = kd.SMEM((64, 32), kd.float16, transforms=(kd.TilingTransform((8, 32)), kd.SwizzleTransform(64)))


def kept_kernel(other: bool = True) -> Any:
    """acc += h @ g[1] in a loop that leaves h alone. With `other`, an inner loop multiplies by elements that it computes."""

    @kd.kernel(
        out_type=kd.ShapeDtypeStruct((64, 32), kd.float32),
        scratch_types=[kd.ACC((64, 32), kd.float32), TILE],
        compiler_params=kd.CompilerParams(target="sm_90a"),
    )
    def kernel(g: Any, zero: Any, out: Any, acc: Any, tile: Any) -> None:
        h = g[0]
        acc[...] = kd.zeros((64, 32), kd.float32)
        tile[...] = g[1]
        kd.commit_smem()

        @kd.loop(0, 2)
        def _(_: Any) -> None:
            kd.wgmma(acc, h, tile.at[:32])
            kd.wgmma_wait(0)
            if not other:
                return

            @kd.loop(0, 2)
            def _(i: Any) -> None:
                kd.wgmma(acc, g[1] * kd.astype(1 + (0 * zero + i) % 2, kd.float16), tile.at[:32])
                kd.wgmma_wait(0)

        out[...] = acc[...]

    return kernel


@pytest.mark.wgmma
def test_a_left_side_lives_across_a_loop(interpret: Any) -> None:
    """Wrong on a GPU without the copies: the second turn multiplies by twice g[1]."""
    g = np.random.default_rng(3).integers(-2, 3, (2, 64, 32)).astype(np.float16)
    f = g.astype(np.float64)
    want = 2 * (f[0] @ f[1][:32]) + 6 * (f[1] @ f[1][:32])
    np.testing.assert_array_equal(kept_kernel()(g, 0, interpret=interpret), want)


def _products(ptx: str) -> list[list[str]]:
    """The registers of A of each instruction."""
    return [re.findall(r"[%\w]+", found) for found in re.findall(r"\}, \{([^}]*)\}, db", ptx)]


def test_a_copy_is_made_in_each_turn() -> None:
    ptx = kept_kernel().lower(kd.ShapeDtypeStruct((2, 64, 32), kd.float16), 0).ptx
    kept, made = _products(ptx)[:2], _products(ptx)[2:]
    assert all(r.startswith("kept") for some in kept for r in some) and len(made) == 2
    assert not any(r.startswith("kept") for some in made for r in some)  # the loop computes these
    lines = [line.strip() for line in ptx.split("\n")]
    last = max(n for n, line in enumerate(lines) if line.startswith("or.b32") and "kept" in line)
    assert lines.index("wgmma.fence.sync.aligned;") > last > lines.index("$L__BB0_1:")
    assert copy_operands(ptx) == ptx  # once is enough


def test_what_a_loop_writes_is_left_alone() -> None:
    """No loop around a product, or one that loads its left side."""
    head, product = (
        "\twgmma.fence.sync.aligned;",
        "{ wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {a0}, {%r1, %r2}, db, 1; }",
    )
    loop = ["$L1:", "\tld.shared.v2.b32 \t{%r1, %r2}, [%r9];", head, product, "\t@%p1 bra \t$L1;"]
    for text in (product, "\n".join([head, product]), "\n".join(loop)):
        assert copy_operands(text) == text
    changed = copy_operands("\n".join([loop[0], *loop[2:]]))
    assert "{kept2_0, kept2_1}" in changed and "or.b32 \tkept2_1, %r2, kept2_2;" in changed
    one = "\n".join([loop[0], "\tmov.b32 \t%r2, 0;", *loop[2:]])
    assert "{kept3_0, %r2}" in copy_operands(one)


def test_what_inline_ptx_writes_is_left_alone() -> None:
    """A line of inline PTX has several instructions."""
    block = "\t{ .reg .b32 %t; shr.u32 %t, %r9, 4; @%p2 add.u32 %r1, %t, 1; lop3.b32 %r2, %t, 15, %r9, 0xEA; }"
    product = "{ wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {a0}, {%r1, %r2}, db, 1; }"
    text = "\n".join(["$L1:", block, "\twgmma.fence.sync.aligned;", product, "\t@%p1 bra \t$L1;"])
    assert copy_operands(text) == text


def test_products_with_4_bit_weights_have_none() -> None:
    """Their loop widens each left side that it multiplies, so copies would cost a sixth of its instructions."""
    K, N = 256, 64
    for zeros in (None, kd.ShapeDtypeStruct((K // 128, N), kd.float32)):
        packed = PackedInt4(
            kd.ShapeDtypeStruct((N, K // 2), kd.int8),
            kd.ShapeDtypeStruct((K // 128, N), kd.float32),
            zeros,
            (K, N),
            128,
        )
        stages = kd.library.matmul.lower(kd.ShapeDtypeStruct((16, K), kd.bfloat16), packed, target="sm_90a")
        assert "wgmma" in stages.ptx and "kept" not in stages.ptx
