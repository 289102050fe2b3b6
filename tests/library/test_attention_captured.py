"""Functions of scores and masks that close over arrays, forward and backward, against float64."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.library import attention, attention_backward
from kernel_dsl.library.attention_forward.captured import capture
from tests.hopper.helpers import random, relative

from . import attention_reference as reference
from .test_attention_options import BOUNDS, check, inputs, one_of, ragged

pytestmark = [pytest.mark.tma, pytest.mark.wgmma]
bf16, f32 = kd.bfloat16, kd.float32
SLOPES = np.array([0.02, 0.3], np.float32)
DOCUMENTS = np.repeat(np.arange(20), 17).astype(np.int32)


def of_batch(documents: Any) -> Any:
    return lambda b, h, i, j: documents[b, i] == documents[b, j]


def with_default(b: Any, h: Any, i: Any, j: Any, documents: Any = DOCUMENTS) -> Any:
    return documents[i] == documents[j]


def of_globals(b: Any, h: Any, i: Any, j: Any) -> Any:
    return helper(i) == helper(j)


def helper(x: Any) -> Any:
    return DOCUMENTS[x]


@dataclass(frozen=True, eq=False)
class Documents:
    """An object that is called, and one with a method."""

    numbers: Any

    def __call__(self, b: Any, h: Any, i: Any, j: Any) -> Any:
        return self.numbers[i] == self.numbers[j]

    def causal(self, b: Any, h: Any, i: Any, j: Any) -> Any:
        return self(b, h, i, j) & (j <= i)


def all_of(functions: Any) -> Any:
    def every(b: Any, h: Any, i: Any, j: Any) -> Any:
        seen = j <= i
        for function in functions:
            seen = seen & function(b, h, i, j)
        return seen

    return every


def alibi(x: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    return x - (i - j) * SLOPES[h]


def rows(documents: Any) -> Any:
    """A part of an array, and a number of it."""

    def seen(b: Any, h: Any, i: Any, j: Any) -> Any:
        mine = None if isinstance(b, np.ndarray) else documents[b]
        at = partial(lambda x: documents[b, x]) if mine is None else mine.__getitem__
        return (at(i) >= at(j)) & (j >= documents[0, 0])

    return seen


MASKS: dict[str, Any] = {
    "closure": of_batch(np.stack([DOCUMENTS, DOCUMENTS // 2])),
    "default": with_default,
    "globals": of_globals,
    "object": Documents(DOCUMENTS),
    "method": Documents(DOCUMENTS).causal,
    "partial": partial(with_default, documents=DOCUMENTS // 3),
    "several": all_of([of_batch(np.stack([DOCUMENTS, DOCUMENTS // 2])), Documents(DOCUMENTS // 2)]),
    "rows": rows(np.stack([DOCUMENTS, DOCUMENTS // 4])),
    "bytes": of_batch(np.stack([DOCUMENTS, DOCUMENTS]).astype(np.uint8)),
}


def run(rng: Any, shape: Any, dtype: Any, interpret: Any, **options: Any) -> None:
    """Forward and gradients."""
    q, k, v = inputs(rng, *shape, dtype)
    dout = random(rng, (*q.shape[:3], v.shape[3]), dtype)
    expected = reference.attention(q, k, v, **options, dout=dout)
    check(attention(q, k, v, **options, return_lse=True, interpret=interpret), expected, dtype)
    results = expected.out.astype(dtype.numpy), expected.lse.astype(np.float32)
    got = attention_backward(dout, q, k, v, *results, **options, interpret=interpret)
    for name, x in zip([*"qkv", *(["bias"] if "bias" in options else [])], got, strict=True):
        assert relative(x, expected.grads[name]) < 1.5 * BOUNDS[dtype], name


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("dtype", [bf16, f32], ids=str)
@pytest.mark.sampled(44)
def test_masks(name: str, dtype: Any, rng: Any) -> None:
    """However an array comes into a function."""
    shape = (2, 2, 1, 130, 110, 64, 64) if dtype == bf16 else (2, 2, 1, 23, 19, 12, 8)
    run(rng, shape, dtype, True, mask_mod=MASKS[name])


@pytest.mark.parametrize(
    "more", [{}, {"mask_mod": MASKS["closure"]}, {"softcap": 2.0, "causal": True}], ids=["alone", "mask", "softcap"]
)
@pytest.mark.parametrize("dtype", [bf16, f32], ids=str)
@pytest.mark.sampled(84)
def test_scores(more: Any, dtype: Any, interpret: Any, rng: Any) -> None:
    """Scores' functions, beside masks that have arrays of their own; no gradient is asked for the arrays."""
    shape = (2, 2, 1, 130, 110, 64, 64) if dtype == bf16 else (2, 2, 1, 23, 19, 12, 8)
    run(rng, shape, dtype, interpret, score_mod=alibi, **more)


@pytest.mark.parametrize("shape", [(2, 1, 40, 50), (2, 2, 40, 50)], ids=str)
@pytest.mark.parametrize("dtype", [f32, bf16], ids=str)
@pytest.mark.sampled(21)
def test_bias(shape: Any, dtype: Any, rng: Any) -> None:
    """The gradient of a bias beside them, by a kernel of its own and where scores are met."""
    bias = random(rng, shape, dtype)
    run(rng, (2, 2, 1, 40, 50, 64, 64), bf16, True, bias=bias, score_mod=alibi, mask_mod=MASKS["closure"])


def test_a_given_derivative(rng: Any) -> None:
    """Of three functions each has its own arrays."""
    scale, twice = np.array([0.5, 1.5], np.float32), np.array([1.0, 3.0], np.float32)
    options = {"score_mod": lambda x, b, h, i, j: x * x * scale[h], "mask_mod": MASKS["default"]}
    q, k, v = inputs(rng, 1, 2, 1, 20, 30, 16, 16, f32)
    expected = reference.attention(q, k, v, **options, dout=q)
    results = expected.out.astype(np.float32), expected.lse.astype(np.float32)
    got = attention_backward(
        q, q, k, v, *results, **options, score_mod_grad=lambda x, b, h, i, j: x * twice[h], interpret=True
    )
    assert all(relative(x, expected.grads[n]) < 1e-5 for n, x in zip("qkv", got, strict=True))


@pytest.mark.parametrize("dtype", [bf16, f32], ids=str)
@pytest.mark.sampled(12)
def test_ragged(dtype: Any, rng: Any) -> None:
    """Documents by their place in the arrays: each sequence has its own."""
    dims = (64, 64) if dtype == bf16 else (12, 8)
    q, k, v, starts, _ = ragged(rng, (100, 0, 37), (100, 0, 37), (2, 1), dims, dtype)
    numbers = np.stack([DOCUMENTS, DOCUMENTS, DOCUMENTS // 2])
    dout = random(rng, (*q.shape[:2], dims[1]), dtype)
    options = {"q_seqlens": starts, "mask_mod": of_batch(numbers)}
    out, lse = attention(q, k, v, **options, return_lse=True, interpret=True)
    grads = attention_backward(dout, q, k, v, out, lse, **options, interpret=True)
    for n in (0, 2):
        single, here = [one_of(x, starts, n) for x in (q, k, v)], slice(starts[n], starts[n + 1])
        expected = reference.attention(*single, mask_mod=of_batch(numbers[n : n + 1]), dout=one_of(dout, starts, n))
        check((out[here].swapaxes(0, 1)[None], lse[:, here][None]), expected, dtype)
        for name, x in zip("qkv", grads, strict=True):
            assert relative(one_of(x, starts, n), expected.grads[name]) < 1.5 * BOUNDS[dtype]


def test_other_arrays_need_no_compile(rng: Any) -> None:
    """Functions of the same text with arrays like those before, and arrays that change in place."""
    q, k, v = inputs(rng, 2, 2, 1, 100, 100, 64, 64, bf16)
    numbers = np.stack([DOCUMENTS, DOCUMENTS // 2])
    attention(q, k, v, mask_mod=of_batch(numbers), interpret=True)
    before = dict(attention._plans)
    other = numbers // 3
    for _ in range(2):
        expected = reference.attention(q, k, v, mask_mod=of_batch(other))
        assert relative(attention(q, k, v, mask_mod=of_batch(other), interpret=True), expected.out) < BOUNDS[bf16]
        other[:] = rng.integers(0, 3, other.shape)
    assert attention._plans == before


def test_what_is_no_array_decides() -> None:
    """Numbers that differ make another function, and other functions of equal parts the same."""

    def made(number: Any, array: Any = DOCUMENTS) -> Any:
        return lambda b, h, i, j: array[i] + number == array[j]

    first, arrays = capture(made(1), 0)
    assert arrays[0] is DOCUMENTS and len(arrays) == 1
    assert first == capture(made(1, DOCUMENTS + 1), 0)[0] and hash(first) == hash(capture(made(1), 0)[0])
    assert first != capture(made(2), 0)[0] and first != capture(made(1.0), 0)[0] and first != capture(made(1), 1)[0]
    plain = reference.documents
    assert capture(plain, 0) == (plain, []) and capture(partial(plain, 1), 0)[1] == []


def test_recursion_and_shared_arrays() -> None:
    """A function that names itself ends."""

    def again(i: Any, depth: int = 0) -> Any:
        return DOCUMENTS[i] if depth else again(i, 1)

    made, arrays = capture(lambda b, h, i, j: again(i) == again(j), 0)
    assert all(x is DOCUMENTS for x in arrays) and arrays
    assert made.of([x * 2 for x in arrays])(0, 0, 20, 30) == (DOCUMENTS[20] == DOCUMENTS[30])


@pytest.mark.gpu
@pytest.mark.parametrize("dims", [(64, 64), (128, 128), (192, 128)], ids=str)
@pytest.mark.parametrize("name", ["closure", "several"])
def test_on_a_gpu(dims: Any, name: str, rng: Any) -> None:
    run(
        rng,
        (2, 4, 2, 340, 340, *dims),
        bf16,
        False,
        mask_mod=MASKS[name],
        score_mod=lambda x, b, h, i, j: x + SLOPES[b],
    )
