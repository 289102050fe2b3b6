"""Grouped products, cross-entropy and convolutions of any rows: right by float64, and the bits of kernels for these sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kernel_dsl as kd

from .counting import none_before

Array = np.ndarray[Any, Any]
bf16 = ml_dtypes.bfloat16
ROWS = (128, 80, 264, 40)
IMAGES = ((2, 16, 16), (3, 16, 16), (4, 16, 16), (1, 16, 16))
GROUPS, DEPTH, COLUMNS = 5, 64, 72
Made = Callable[[np.random.Generator, Any, Any], tuple[Any, Any]]  # (result, what it is by float64) of a size


def numbers(rng: np.random.Generator, dtype: Any, *shape: int) -> Array:
    return rng.standard_normal(shape).astype(dtype)


def sizes_of(rng: np.random.Generator, rows: int) -> Array:
    """Groups of a part of the rows, one of them empty."""
    return rng.multinomial(rows - rows // 7, [0.3, 0, 0.3, 0.2, 0.2]).astype(np.int32)


def product(a: Array, b: Array, sizes: Array) -> Array:
    out, ends = np.zeros((len(a), b.shape[2])), np.cumsum(sizes)
    for group, (start, end) in enumerate(zip(ends - sizes, ends, strict=True)):
        out[start:end] = a[start:end].astype(float) @ b[group].astype(float)
    return out


def grouped(dtype: Any, rng: np.random.Generator, rows: int, device: Any) -> tuple[Any, Any]:
    a, b, sizes = numbers(rng, dtype, rows, DEPTH), numbers(rng, dtype, GROUPS, DEPTH, COLUMNS), sizes_of(rng, rows)
    return device(kd.library.grouped_matmul, a, b, sizes), product(a, b, sizes)


def experts(rng: np.random.Generator, rows: int, device: Any) -> tuple[Any, Any]:
    """Gathered rows whose products are added up at their places."""
    a, b = numbers(rng, bf16, rows // 2, DEPTH), numbers(rng, bf16, GROUPS, DEPTH, COLUMNS)
    sizes, indices = sizes_of(rng, rows), rng.integers(0, rows // 2, rows).astype(np.int32)
    scatter, weights = rng.permutation(rows).astype(np.int32), numbers(rng, np.float32, rows // 2, 2)
    more = {"indices": indices, "scatter": scatter, "weights": weights}
    terms = product(a[indices], b, sizes).astype(bf16).astype(float) * weights.reshape(-1)[scatter, None]
    want = np.zeros((rows // 2, COLUMNS))
    np.add.at(want, scatter[: sizes.sum()] // 2, terms[: sizes.sum()])
    return device(kd.library.grouped_matmul, a, b, sizes, **more), want


def weights(dtype: Any, rng: np.random.Generator, rows: int, device: Any) -> tuple[Any, Any]:
    a, dout, sizes = numbers(rng, dtype, rows, DEPTH), numbers(rng, dtype, rows, COLUMNS), sizes_of(rng, rows)
    ends = np.cumsum(sizes)
    parts = [slice(end - n, end) for n, end in zip(sizes, ends, strict=True)]
    want = np.stack([a[part].astype(float).T @ dout[part].astype(float) for part in parts])
    return device(kd.library.grouped_matmul_wgrad, a, dout, sizes), want


def summed(dtype: Any, odd: int, rng: np.random.Generator, rows: int, device: Any) -> tuple[Any, Any]:
    """The gradient of a weight: a product over rows, of which one more element or less makes TMA need copies."""
    x, dout = numbers(rng, dtype, rows, 128 + odd), numbers(rng, dtype, rows, DEPTH - odd)
    how = {"precision": "tf32"} if dtype is np.float32 else {"out_dtype": "float32"}
    return device(kd.library.matmul, x.T, dout, **how), x.astype(float).T @ dout.astype(float)


def sparse(dtype: Any, what: str, rng: np.random.Generator, sizes: Any, device: Any) -> tuple[Any, Any]:
    """Of other rows, beside other columns of b, or of another batch; b is stored by columns, or by rows."""
    batch, rows, columns = sizes
    a = kd.library.sparse_compress(numbers(rng, dtype, rows, 128), prune=True, interpret=True)
    b = numbers(rng, dtype, *batch, *((128, columns) if what == "by rows" else (columns, 128)))
    b = b if what == "by rows" else b.swapaxes(-1, -2)
    dense = np.asarray(kd.library.sparse_decompress(a, interpret=True)).astype(float)
    how = {"precision": "tf32"} if dtype is np.float32 else {"out_dtype": "float32"}
    return device(kd.library.sparse_matmul, a, b, **how), dense @ b.astype(float)


def scaled(form: str, rng: np.random.Generator, sizes: Any, device: Any) -> tuple[Any, Any]:
    """A batch of products with scales by blocks of K: of rows, and of columns or of blocks of them."""
    batch, rows = sizes
    a, b = (numbers(rng, np.float32, batch, n, 300).astype(ml_dtypes.float8_e4m3fn) for n in (rows, 40))
    left = numbers(rng, np.float32, batch, rows, 3) if form != "shared" else numbers(rng, np.float32, rows, 3)
    right = numbers(rng, np.float32, *((batch, 3, 40) if form == "columns" else (3, 1)))
    wide, tall = np.repeat(left, 128, axis=-1)[..., :300], np.repeat(right, 128, axis=-2)[..., :300, :]
    want = (a.astype(float) * wide) @ (b.astype(float).swapaxes(1, 2) * tall)
    how = {"a_scale": left, "b_scale": right, "out_dtype": "float32"}
    return device(kd.library.matmul, a, b.swapaxes(1, 2), **how), want


def narrow(form: str, rng: np.random.Generator, sizes: Any, device: Any) -> tuple[Any, Any]:
    """8 bits with scales by blocks of K beside 4-bit weights, one matrix or a gated pair, or beside bfloat16."""
    batch, rows = sizes
    a = rng.integers(-8, 9, (*batch, rows, 256)).astype(ml_dtypes.float8_e4m3fn)
    b = numbers(rng, np.float32, 256, 40)
    left = 2.0 ** rng.integers(-2, 3, (*batch, rows, 2)).astype(np.float32)  # so that nothing is rounded
    wide = a.astype(float) * np.repeat(left, 128, axis=-1)
    if form == "bfloat16":
        return device(kd.library.matmul, a, b.astype(bf16), a_scale=left, out_dtype="float32"), wide @ b.astype(
            bf16
        ).astype(float)
    packed = kd.library.pack_int4(b, interpret=True)
    want = wide @ np.asarray(packed.unpacked("float32", interpret=True)).astype(float)
    if form == "one":
        return device(kd.library.matmul, a, packed, a_scale=left, out_dtype="float32"), want
    made = device(kd.library.matmul, a, (packed, packed), a_scale=left, gated="reglu", out_dtype="float32")
    return made, np.maximum(want, 0) * want


def entropy(rng: np.random.Generator, rows: int, device: Any) -> tuple[Any, Any]:
    x, weight = numbers(rng, bf16, rows, DEPTH), numbers(rng, bf16, 200, DEPTH)
    targets = rng.integers(0, 200, rows).astype(np.int32)
    logits = x.astype(float) @ weight.astype(float).T
    top = logits.max(axis=1)
    want = np.log(np.exp(logits - top[:, None]).sum(axis=1)) + top - logits[np.arange(rows), targets]
    return device(kd.library.linear_cross_entropy, x, weight, targets, reduction="none"), want


def convolved(dtype: Any, kind: str, rng: np.random.Generator, sizes: Any, device: Any) -> tuple[Any, Any]:
    x, w = numbers(rng, dtype, *sizes, 64), numbers(rng, dtype, 64, 3, 3, 64)
    dout = numbers(rng, dtype, *sizes, 64)
    padded = np.pad(x.astype(float), ((0, 0), (1, 1), (1, 1), (0, 0)))
    around = np.pad(dout.astype(float), ((0, 0), (1, 1), (1, 1), (0, 0)))
    _, height, width = sizes
    taps = [(r, s) for r in range(3) for s in range(3)]

    def seen(images: Array, r: int, s: int) -> Array:
        return images[:, r : r + height, s : s + width]

    if kind == "forward":
        want = sum(np.einsum("nhwc,fc->nhwf", seen(padded, r, s), w[:, r, s].astype(float)) for r, s in taps)
        return device(kd.library.conv2d, x, w, padding=1), want
    if kind == "dgrad":
        want = sum(np.einsum("nhwf,fc->nhwc", seen(around, 2 - r, 2 - s), w[:, r, s].astype(float)) for r, s in taps)
        return device(kd.library.conv2d_dgrad, dout, w, x.shape, padding=1), want
    each = [np.einsum("nhwc,nhwf->fc", seen(padded, r, s), dout.astype(float)) for r, s in taps]
    return device(kd.library.conv2d_wgrad, x, dout, 3, padding=1), np.stack(each, axis=1).reshape(64, 3, 3, 64)


def strided(dtype: Any, groups: int, rng: np.random.Generator, sizes: Any, device: Any) -> tuple[Any, Any]:
    """The gradient of images, of which a stride of (2, 3) leaves out the ends of some."""
    images, height, width = sizes
    w = numbers(rng, dtype, 16, 3, 2, 8 // groups)
    dout = numbers(rng, dtype, images, (height - 1) // 2 + 1, (width + 1) // 3 + 1, 16)
    want = np.zeros((images, height + 4, width + 8, 8))
    for r in range(3):
        for s in range(2):
            parts = [
                dout[..., own].astype(float) @ w[own, r, s].astype(float) for own in np.split(np.arange(16), groups)
            ]
            part = np.concatenate(parts, axis=-1)
            want[:, r : r + 2 * part.shape[1] : 2, 2 * s : 2 * s + 3 * part.shape[2] : 3] += part
    o = {"stride": (2, 3), "padding": (1, 2), "dilation": (1, 2), "groups": groups}
    size = (images, height, width, 8)
    return device(kd.library.conv2d_dgrad, dout, w, size, **o), want[:, 1 : height + 1, 2 : width + 2]


def compressed(dtype: Any, rng: np.random.Generator, sizes: Any, device: Any) -> tuple[Any, Any]:
    """A matrix that is compressed and made dense again."""
    group = 2 if dtype is np.float32 else 4
    x = rng.integers(-99, 99, sizes).reshape(-1, group)
    kept = np.argsort(rng.random(x.shape), axis=1) < group // 2
    a = np.where(kept, x, 0).reshape(sizes).astype(dtype)
    made = kd.library.sparse_compress(a, interpret=True)
    return device(kd.library.sparse_decompress, made), a.astype(float)


def packed(kind: str, rng: np.random.Generator, sizes: Any, device: Any) -> tuple[Any, Any]:
    """Weights that 4 bits hold exactly, packed and unpacked."""
    rows, columns = sizes
    numbers_of = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6]) if kind == "mxfp4" else np.arange(8.0)
    w = rng.choice(numbers_of, sizes) * rng.choice([-1, 1], sizes)
    w[::32] = numbers_of[-1]  # each group has the greatest
    how = {} if kind != "int4 with zeros" else {"zeros": np.full((-(-rows // 128), columns), 8, np.float32)}
    pack = kd.library.pack_mxfp4 if kind == "mxfp4" else kd.library.pack_int4
    made = pack(w.astype(bf16), **how, interpret=True)
    return device(made.unpacked, "float32"), w


def case(function: Any, *given: Any) -> Made:
    return lambda rng, size, device: function(*given, rng, size, device)


CASES: dict[str, tuple[Made, Any]] = {
    "grouped": (case(grouped, bf16), ROWS),
    "grouped float32": (case(grouped, np.float32), ROWS),
    "experts": (experts, ROWS),
    "weights": (case(weights, bf16), ROWS),
    "weights float32": (case(weights, np.float32), ROWS),
    "summed": (case(summed, bf16, 0), (256, 512, 384, 640)),
    "summed odd": (case(summed, bf16, 1), (256, 511, 384, 639)),
    "summed tf32": (case(summed, np.float32, 0), (256, 264, 272, 280)),
    "summed tf32 odd": (case(summed, np.float32, 1), (256, 264, 272, 280)),
    "summed float8": (case(summed, ml_dtypes.float8_e4m3fn, 0), (256, 512, 384, 640)),
    "entropy": (entropy, (300, 400, 500, 600)),
}
CASES |= {f"strided {name} {groups}": (case(strided, dtype, groups), ((2, 16, 16), (3, 9, 12), (1, 13, 10), (2, 8, 15)))
          for name, dtype, groups in (("bf16", bf16, 1), ("float32", np.float32, 2))}  # fmt: skip
CASES |= {f"compressed {name}": (case(compressed, dtype), ((64, 132), (70, 68), (129, 132), (33, 28)))
          for name, dtype in (("bf16", bf16), ("float32", np.float32), ("int8", np.int8))}  # fmt: skip
CASES |= {f"packed {kind}": (case(packed, kind), ((128, 64), (320, 72), (70, 33), (200, 128)))
          for kind in ("int4", "int4 with zeros", "mxfp4")}  # fmt: skip
CASES |= {f"scaled {form}": (case(scaled, form), ((2, 40), (3, 33), (5, 35), (4, 34)))
          for form in ("rows", "columns", "shared")}  # fmt: skip
# All have one tile of rows, or all have more: these are two kernels.
CASES |= {f"narrow {form}": (case(narrow, form), (((), 40), ((), 33), ((2,), 20), ((), 34)))
          for form in ("one", "pair", "bfloat16")}  # fmt: skip
CASES |= {f"sparse {name} {what}": (case(sparse, dtype, what), sizes)
          for name, dtype in (("bf16", bf16), ("float32", np.float32), ("float8", ml_dtypes.float8_e4m3fn))
          for what, sizes in (
              ("rows", (((), 64, 40), ((), 129, 40), ((), 70, 40), ((), 99, 40))),
              ("columns", (((), 72, 40), ((), 72, 33), ((), 72, 35), ((), 72, 50))),
              ("by rows", (((), 72, 40), ((), 72, 33), ((), 72, 35), ((), 72, 50))),
              ("batch", (((2,), 72, 40), ((3,), 80, 40), ((5,), 96, 40), ((4,), 72, 40))),
          )}  # fmt: skip
CASES |= {f"{kind} {name}": (case(convolved, dtype, kind), IMAGES)
          for kind in ("forward", "dgrad", "wgrad") for name, dtype in (("bf16", bf16), ("float32", np.float32))}  # fmt: skip


# kernels for any size add up in another order: a kept configuration has other steps, few pixels are shared by parts
OTHER_ORDER = ("summed tf32", "summed tf32 odd", "wgrad float32")


def interpreted(function: Any, *args: Any, **how: Any) -> Array:
    return np.asarray(function(*args, interpret=True, **how))


def fresh(function: Any, *args: Any, **how: Any) -> Array:
    """By a function that keeps no plans of other calls."""
    own = function if not hasattr(function, "_plans") else type(function)()
    return interpreted(own, *args, **how)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_third_size_compiles_nothing(name: str, traces: list[str]) -> None:
    """And gives the bits of the kernels for it alone."""
    made, sizes = CASES[name]
    later: list[list[str]] = []
    with none_before():
        for number, size in enumerate(sizes):
            traces.clear()
            got, want = made(np.random.default_rng(number), size, fresh)
            later.append(list(traces))
            np.testing.assert_allclose(got.astype(float), want, rtol=0.03, atol=0.03 * np.abs(want).max())
            with none_before():
                alone, _ = made(np.random.default_rng(number), size, fresh)
            assert got.tobytes() == alone.tobytes() or name in OTHER_ORDER
    assert later[2:] == [[], []], later


def on_gpu(function: Any, *args: Any, **how: Any) -> Array:
    own = function if not hasattr(function, "_plans") else type(function)()
    return np.asarray(own(*args, **how))


@pytest.mark.gpu
@pytest.mark.wgmma
@pytest.mark.parametrize("name", CASES)
def test_later_sizes_on_a_gpu(name: str) -> None:
    made, sizes = CASES[name]
    with none_before():
        for number, size in enumerate(sizes):
            got, want = made(np.random.default_rng(number), size, on_gpu)
            np.testing.assert_allclose(got.astype(float), want, rtol=0.03, atol=0.03 * np.abs(want).max())
