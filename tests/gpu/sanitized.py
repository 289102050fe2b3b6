"""Calls of the library's attention, decoding and products for compute-sanitizer: `python -m tests.gpu.sanitized NAME`.

Lengths are odd, and what lies beyond them is NaN. A result that isn't finite is an error, as is whatever the tool finds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

import kernel_dsl as kd

bf16, e4m3 = kd.bfloat16, kd.float8_e4m3fn


def normal(*shape: int, dtype: Any = bf16) -> Any:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(dtype.numpy)


def finite(results: Any) -> None:
    """Raise AssertionError unless all numbers are finite."""
    for x in results if isinstance(results, tuple) else (results,):
        assert np.isfinite(np.asarray(x).astype(np.float32)).all()


def attention(dims: tuple[int, int] = (64, 64), deterministic: bool = False, **options: Any) -> None:
    q, k, v = (normal(2, h, n, d) for h, n, d in ((4, 299, dims[0]), (2, 336, dims[0]), (2, 336, dims[1])))
    out, lse = kd.library.attention(q, k, v, **options, return_lse=True, interpret=False)
    finite((out, lse))
    given = {"deterministic": deterministic, "interpret": False}
    finite(kd.library.attention_backward(out, q, k, v, out, lse, **options, **given))


def ragged() -> None:
    starts = np.array([0, 100, 100, 137, 400], np.int32)
    q, k, v = (normal(450, h, 64) for h in (4, 2, 2))
    k[400:] = v[400:] = np.nan
    given = {"q_seqlens": starts, "causal": True, "interpret": False}
    out, lse = kd.library.attention(q, k, v, **given, return_lse=True)
    finite((out[:400], lse[:, :400]))
    grads = kd.library.attention_backward(out, q, k, v, out, lse, **given)
    finite(tuple(x[:400] for x in grads))


def pages(page: int, **options: Any) -> None:
    """Attention and decoding over a cache whose last pages are not full."""
    lengths, most = np.array([150, 0, 33], np.int32), -(-160 // page)
    table = np.arange(3 * most, dtype=np.int32).reshape(3, most)
    k, v = (normal(3 * most, 2, page, 64, dtype=options.pop(name, bf16)) for name in ("k", "v"))
    for b, length in enumerate(lengths):
        for n, keys in ((i, length - i * page) for i in range(most)):
            k[table[b, n], :, max(keys, 0) :] = v[table[b, n], :, max(keys, 0) :] = np.nan
    q = normal(3, 4, 70, 64)
    given = {"page_table": table, "interpret": False}
    if k.dtype == bf16.numpy:
        finite(kd.library.attention(q, k, v, kv_seqlens=lengths, **given))
    for splits in (1, 3):
        finite(kd.library.decode_attention(q[:, :, :2], k, v, lengths, splits=splits, **given))


def latent() -> None:
    table, lengths = np.arange(12, dtype=np.int32).reshape(2, 6), np.array([170, 3], np.int32)
    finite(
        kd.library.mla_decode(normal(2, 2, 70, 576), normal(12, 32, 576), lengths, table, scale=0.05, interpret=False)
    )


def products() -> None:
    for dtype in (bf16, kd.float32, e4m3):
        finite(kd.library.matmul(normal(333, 200, dtype=dtype), normal(200, 136, dtype=dtype), interpret=False))


PROGRAMS: dict[str, Callable[[], None]] = {
    "attention": lambda: attention(causal=True),
    "attention-128": lambda: attention((128, 128)),
    "attention-odd": lambda: attention((72, 40), window=50, sinks=normal(4, dtype=kd.float32)),
    "attention-wide": lambda: attention((192, 128), causal="bottom_right"),
    "attention-bias": lambda: attention(bias=normal(2, 4, 299, 336), softcap=5.0),
    "attention-functions": lambda: attention(
        score_mod=lambda x, b, h, i, j: x - (i - j) * 0.125, mask_mod=lambda b, h, i, j: kd.div(i, 40) == kd.div(j, 40)
    ),
    "attention-deterministic": lambda: attention(deterministic=True, causal=True),
    "attention-ragged": ragged,
    "pages-16": lambda: pages(16),
    "pages-3": lambda: pages(3),
    "pages-e4m3": lambda: pages(32, k=e4m3, v=e4m3),
    "latent": latent,
    "matmul": products,
}

if __name__ == "__main__":
    PROGRAMS[sys.argv[1]]()
