"""Functions of scores that add something linear in places: found as such, and right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.library import AttentionConfig
from kernel_dsl.library.attention_forward.captured import capture, function_of, reading
from kernel_dsl.library.attention_forward.linear import linear_of
from tests.hopper.helpers import random

from . import attention_reference as reference
from .test_attention_options import SHAPE, check, inputs

pytestmark = [pytest.mark.tma, pytest.mark.wgmma]
bf16, f32 = kd.bfloat16, kd.float32

SLOPES = np.array([0.25, 0.5], np.float32)
LINEAR: dict[str, tuple[Any, bool]] = {
    "alibi": (reference.alibi, True),
    "by array": (lambda x, b, h, i, j: x + SLOPES[h] * (j - i), True),
    "floats": (lambda x, b, h, i, j: (i - j).astype(np.float32) * -0.125 + x - 2 * 0.5, True),
    "apart": (lambda x, b, h, i, j: x - i.astype(np.float32) * 0.5 + 0.5 * j.astype(np.float32), True),
    "negative": (lambda x, b, h, i, j: -(-x + (i + 3 - j) * 0.25), True),
    "squared": (lambda x, b, h, i, j: x - (i - j) * (i - j) * 0.001, False),
    "scaled": (lambda x, b, h, i, j: 2 * x + j * 0.125, False),
    "score": (lambda x, b, h, i, j: x * x, False),
    "nothing": (lambda x, b, h, i, j: 1.0, False),
}


@pytest.mark.parametrize("name", LINEAR)
def test_linear_functions(name: str, rng: Any) -> None:
    """Functions that add something linear in places are found, and no others."""
    function, linear = LINEAR[name]
    found: list[Any] = []

    def body(out: Any) -> None:
        i, j = (kd.broadcasted_iota(kd.int32, (64, 16), axis) for axis in (0, 1))
        place = kd.program_id(0), kd.program_id(1), i, j
        with reading({"captured0": out}):
            function_, _ = capture(function, 0)
            found.append(linear_of(function_of(function_), kd.zeros((64, 16), f32), place, (64, 16)))

    made = kd.kernel(body, out_type=kd.ShapeDtypeStruct((2,), f32), grid=(1, 2))
    made.lower(target="sm_90a")  # traces the body
    assert (found[0] is not None) == linear
    spec = kd.ShapeDtypeStruct((1, 2, 128, 128), bf16)
    config = AttentionConfig(3, 80, 3) if linear else AttentionConfig(2, 128, 2, turns=True)
    chosen, given = (
        kd.library.attention.lower(spec, spec, spec, score_mod=function, config=x, target="sm_90a").ir_text
        for x in (None, config)
    )
    assert chosen == given


@pytest.mark.parametrize("name", LINEAR)
@pytest.mark.parametrize("softcap", [4.0, None])
@pytest.mark.sampled(33)
def test_linear_functions_of_scores(name: str, softcap: float | None, rng: Any) -> None:
    """At places far from where a row's maximum is, alone, and after softcap and a bias."""
    q, k, v = inputs(rng, *SHAPE, bf16)
    options: dict[str, Any] = {"score_mod": LINEAR[name][0], "window": 70}
    options |= (
        {"sinks": random(rng, (2,), f32)} if softcap is None else {"softcap": 4.0, "bias": random(rng, (130, 110), f32)}
    )
    got = kd.library.attention(q, k, v, **options, return_lse=True, interpret=True)
    check(got, reference.attention(q, k, v, **options), bf16)
