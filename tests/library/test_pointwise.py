"""Functions of the user's that kernels call on parts of an array: one that mixes elements is refused, any other is taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.errors import BadCallArgument, BadCallValue
from kernel_dsl.ops.pointwise import mixing

Function = Callable[..., Any]
RNG = np.random.default_rng(0)
A, B = (RNG.standard_normal((70, 70), np.float32) for _ in range(2))
Q, K, V = (RNG.standard_normal((1, 2, 70, 64)).astype(kd.bfloat16.numpy) for _ in range(3))
ENDS = np.array([12, 25, 40], np.int32)
TABLE = RNG.standard_normal((2, 160), np.float32)

# of one array
MIXING: dict[str, Function] = {
    "softmax": lambda x: kd.exp(x) / kd.sum(kd.exp(x), axis=1, keepdims=True),
    "max": lambda x: x - x.max(),
    "argmax": lambda x: x + kd.argmax(x, axis=1)[:, None],
    "any": lambda x: kd.where(kd.any(x > 3), x, -x),
    "scan": lambda x: kd.cumsum(x, 1),
    "sort": lambda x: kd.sort(x, axis=1),
    "flip": lambda x: kd.flip(x, 0),
    "row": lambda x: x + x[0],
    "halves": lambda x: kd.concatenate([x[:, x.shape[1] // 2 :], x[:, : x.shape[1] // 2]], axis=1),
    "reshape": lambda x: x.reshape(-1).reshape(x.shape),
    "dot": lambda x: kd.dot(x, kd.full((x.shape[1], x.shape[1]), 0.5)),
    "arange": lambda x: x + kd.arange(x.shape[1]),
    "random": lambda x: x * kd.random.uniform(3, x.shape),
    "block": lambda x: x + kd.program_id(0),
    "branch": lambda x: kd.cond(kd.program_id(0) == 0, lambda: x, lambda: -x),
    "loop": lambda x: kd.fori_loop(0, 3, lambda _, c: c - c.max(), x),
    "turns": lambda x: kd.fori_loop(0, 2, lambda _, c: (c[0] + c[1], kd.cumsum(c[1], 1)), (x, x))[0],
    "while": lambda x: kd.while_loop(lambda c: c[1] < 3, lambda c: (c[0] - c[0].max(), c[1] + 1), (x, 0))[0],
    "associative": lambda x: kd.associative_scan(lambda a, b: a + b, x, axis=1),
}
ALONE: dict[str, Function] = {
    "gelu": lambda x: 0.5 * x * (1 + kd.erf(x * 0.5**0.5)),
    "constant": lambda x: kd.full(x.shape, 2.0) + kd.zeros_like(x),
    "select": lambda x: kd.where(kd.isnan(x), 0.0, kd.clip(x, -1, 1)),
    "bits": lambda x: kd.bitcast_convert_type(kd.bitcast_convert_type(x, kd.uint32) & 0xFFFF0000, kd.float32),
    "cast": lambda x: x.astype(kd.float8_e4m3fn).astype(kd.float32),
    "loop": lambda x: kd.fori_loop(0, 3, lambda n, c: c * x + n, x),
    "divisor": lambda x: kd.gcd(x.astype(kd.int32), 12).astype(x.dtype),  # a loop until no element needs another turn
    "stack": lambda x: kd.max(kd.stack([x, -x, x * 2], axis=-1), axis=-1),
    "leading": lambda x: kd.sum(kd.stack([x, x * x]), axis=0),
    "pick": lambda x: kd.stack([x, -x])[1],
    "there and back": lambda x: x.T.T[None][0],
    "whole": lambda x: x[:, :] + x[...],
    "buckets": lambda x: kd.searchsorted(kd.arange(8).astype(kd.float32), x).astype(kd.float32),
    "terms": lambda x: kd.sum(x[..., None] * kd.arange(4), axis=-1),
}
MIXED_SCORES: dict[str, Function] = {
    "first query": lambda s, b, h, i, j: s + (i - i[0]),
    "block of a line": lambda s, b, h, i, j: s + kd.program_id(0),  # of the form that is added to the accumulator
}
MASKS: dict[str, Function] = {  # of kd's arrays and of NumPy's alike
    "tokens": lambda i, j, ends, any_of, find: (j <= i) & any_of(j[..., None] == ends + 1),
    "documents": lambda i, j, ends, any_of, find: find(ends, i) == find(ends, j),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", MIXING)
def test_functions_that_mix_elements_are_refused(name: str) -> None:
    function = MIXING[name]
    with pytest.raises(BadCallValue, match=r"matmul`: the (activation|epilogue) (uses|combines|gives)"):
        kd.library.matmul(A, B, activation=function)
    with pytest.raises(BadCallArgument, match=r"attention`: the score_mod (uses|combines|gives)"):
        kd.library.attention(Q, K, V, score_mod=lambda s, *_: function(s))
    lse = np.zeros((1, 2, 70), np.float32)
    with pytest.raises(BadCallArgument, match=r"attention_backward`: the score_mod(_grad)? (uses|combines|gives)"):
        options = {"score_mod": lambda s, *_: s, "score_mod_grad": lambda s, *_: function(s)}
        kd.library.attention_backward(Q, Q, K, V, Q, lse, **options)


@pytest.mark.parametrize("name", MIXED_SCORES)
def test_places_do_not_mix_either(name: str) -> None:
    function = MIXED_SCORES[name]
    with pytest.raises(BadCallArgument, match=r"the score_mod (uses|combines|gives)"):
        kd.library.attention(Q, K, V, score_mod=function)
    with pytest.raises(BadCallArgument, match=r"the mask_mod (uses|combines|gives)"):
        kd.library.attention(Q, K, V, mask_mod=lambda b, h, i, j: function(i + j, b, h, i, j) < 60)


def test_functions_of_each_element_are_taken() -> None:
    seen: dict[str, str | None] = {}

    @kd.kernel(out_type=())
    def probe(x: Any) -> None:
        seen.update({name: mixing(function, x[...]) for name, function in ALONE.items()})

    _ = probe.lower(A).ir
    assert seen == dict.fromkeys(ALONE)
    for name in ("buckets", "terms"):
        made = kd.library.matmul(A, B, activation=ALONE[name])
        wide = A.astype(float) @ B.astype(float)
        wanted = np.searchsorted(np.arange(8.0), wide) if name == "buckets" else wide * 6
        assert np.mean(np.isclose(made, wanted, rtol=1e-3, atol=1e-3)) > 0.99, name


@pytest.mark.parametrize("name", MASKS)
def test_masks_may_look_things_up(name: str) -> None:
    def mask(b: Any, h: Any, i: Any, j: Any) -> Any:
        find = lambda ends, x: kd.searchsorted(ends, x, side="right")  # noqa: E731
        return MASKS[name](i, j, ENDS[:], lambda x: kd.any(x, axis=-1), find)

    few = [x[:, :1, :40] for x in (Q, K, V)]
    made = kd.library.attention(*few, mask_mod=mask)
    i, j = np.arange(40)[:, None], np.arange(40)[None]
    seen = MASKS[name](i, j, ENDS, lambda x: x.any(-1), lambda ends, x: np.searchsorted(ends, x, side="right"))
    q, k, v = (x[0].astype(float) for x in few)
    weights = np.exp(q @ k.transpose(0, 2, 1) / 8) * seen
    wanted = weights @ v / np.maximum(weights.sum(-1, keepdims=True), 1e-30)
    assert np.abs(made[0].astype(float) - wanted).max() < 0.03


def test_scores_may_read_tables() -> None:
    made = kd.library.attention(
        Q, K, V, score_mod=lambda s, b, h, i, j: s + TABLE[h, i - j + 80] + kd.sum(TABLE[h, :4])
    )
    i, j = np.arange(70)[:, None], np.arange(70)[None]
    q, k, v = (x[0].astype(float) for x in (Q, K, V))
    weights = np.exp(q @ k.transpose(0, 2, 1) / 8 + TABLE[:, i - j + 80])
    assert np.abs(made[0].astype(float) - weights @ v / weights.sum(-1, keepdims=True)).max() < 0.03
