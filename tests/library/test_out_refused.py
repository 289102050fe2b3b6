"""Every function that takes `out=` refuses what is no array of its result's shape and dtype, and names `out`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.errors import BadCallArgument, BadCallValue

LIBRARY = kd.library
HALF, SINGLE = np.float16, np.float32
SIZES = np.array([3, 5], np.int32)
PAGES = {"lengths": np.array([20], np.int32), "page_table": np.array([[0, 1]], np.int32)}


def ones(*shape: int, dtype: Any = HALF) -> np.ndarray:
    return np.ones(shape, dtype)


def packed() -> Any:
    return LIBRARY.pack_int4(ones(64, 8), group=64, interpret=True)


def sparse() -> Any:
    return LIBRARY.sparse_compress(ones(64, 64), prune=True, interpret=True)


# name: (function, arguments, options); several forms where they take another path
CALLS: dict[str, tuple[str, Callable[[], tuple[Any, ...]], dict[str, Any]]] = {
    "product": ("matmul", lambda: (ones(8, 16), ones(16, 8)), {}),
    "batches": ("matmul", lambda: (ones(2, 8, 16), ones(16, 8)), {}),
    "complex": ("matmul", lambda: (ones(8, 16, dtype=np.complex64), ones(16, 8, dtype=np.complex64)), {}),
    "gated": ("matmul", lambda: (ones(8, 16), ones(16, 16)), {"gated": "glu"}),
    "parts of K": ("matmul", lambda: (ones(8, 8192), ones(8192, 8)), {}),
    "another out_dtype": ("matmul", lambda: (ones(8, 16), ones(16, 8)), {"out_dtype": SINGLE}),
    "4 bits": ("matmul", lambda: (ones(8, 64), packed()), {}),
    "sparse": ("sparse_matmul", lambda: (sparse(), ones(64, 8)), {}),
    "grouped": ("grouped_matmul", lambda: (ones(8, 16), ones(2, 16, 8), SIZES), {}),
    "weights' gradient": ("grouped_matmul_wgrad", lambda: (ones(8, 16), ones(8, 4), SIZES), {}),
    "conv2d": ("conv2d", lambda: (ones(1, 5, 5, 8), ones(8, 3, 3, 8)), {}),
    "dgrad": ("conv2d_dgrad", lambda: (ones(1, 3, 3, 8), ones(8, 3, 3, 8), (1, 5, 5, 8)), {}),
    "wgrad": ("conv2d_wgrad", lambda: (ones(1, 5, 5, 8), ones(1, 3, 3, 8), (3, 3)), {}),
    "layer_norm": ("layer_norm", lambda: (ones(5, 8), ones(8), ones(8)), {}),
    "rms_norm": ("rms_norm", lambda: (ones(5, 8), ones(8)), {}),
    "rope": (
        "rope",
        lambda: (ones(4, 2, 16), np.arange(4, dtype=np.int32), ones(4, 8, dtype=SINGLE), ones(4, 8, dtype=SINGLE)),
        {},
    ),
    "attention": ("attention", lambda: (ones(1, 2, 64, 64),) * 3, {}),
    "attention with options": ("attention", lambda: (ones(1, 2, 64, 64),) * 3, {"softcap": 3.0}),
    "decode": ("decode_attention", lambda: (ones(1, 4, 1, 64), ones(2, 2, 16, 64), ones(2, 2, 16, 64)), PAGES),
}
NOT_HERE = {"mla_decode"}  # it checks as decode_attention does


def test_all_functions_are_here() -> None:
    """Collectives aside: they write symmetric memory, and take no stream."""
    functions = [n for n in LIBRARY.__all__ if not inspect.isclass(getattr(LIBRARY, n))]
    parameters = {n: inspect.signature(getattr(LIBRARY, n)).parameters for n in functions}
    takes = {
        n for n, p in parameters.items() if "stream" in p and "out" in p and p["out"].kind is p["out"].KEYWORD_ONLY
    }
    assert takes - NOT_HERE == {function for function, _, _ in CALLS.values()}


@pytest.mark.parametrize("name", CALLS)
def test_refused(name: str) -> None:
    function, arguments, options = CALLS[name]
    given = arguments()

    def call(**more: Any) -> Any:
        return getattr(LIBRARY, function)(*given, **options, **more, interpret=True)

    made = call()
    shape, dtype = made.shape, made.dtype
    other = HALF if dtype == SINGLE else SINGLE
    wrong = {
        "a row more": np.zeros((shape[0] + 1, *shape[1:]), dtype), "an axis more": np.zeros((1, *shape), dtype),
        "another float": np.zeros(shape, other), "int32": np.zeros(shape, np.int32), "a list": [1, 2], "a str": "x",
        "a number": 1.5,
    }  # fmt: skip
    for word, out in wrong.items():
        with pytest.raises((BadCallArgument, BadCallValue), match=r"`: (output 0 of )?out") as caught:
            call(out=out)
        assert f"`{function}`" in str(caught.value), word


@pytest.mark.parametrize("side", [0, 1])
def test_memory_that_a_side_shares_in_part_is_told_by_words_of_the_call(side: int) -> None:
    """The body's `*refs` are no words of the caller's."""
    x, other = ones(512, 256), ones(256, 256)
    sides = (x[:256], other) if side == 0 else (other, x[:256])
    with pytest.raises(kd.Error, match=f"input {('.a.', '1')[side]} and output 0 of kernel 'matmul' overlap in memory"):
        kd.library.matmul(*sides, out=x[16:272], interpret=True)
