"""Dtypes for memory: 4-bit numbers, two a byte, and float8_e8m0fnu, beside ml_dtypes."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.errors import UnsupportedDType
from kernel_dsl.ops.storage import doubled, halved

Spec = kd.ShapeDtypeStruct
PACKED = (kd.int4, kd.uint4, kd.float4_e2m1fn)
WIDE = (kd.bfloat16, kd.float16, kd.float32, kd.int8, kd.int32, kd.float64)


def numbers(dtype: Any, shape: tuple[int, ...], seed: int = 0) -> Any:
    """Any codes, as an array of ml_dtypes."""
    return np.random.default_rng(seed).integers(0, 16, shape).astype(np.uint8).view(dtype.numpy)


def same(got: Any, wanted: Any) -> None:
    got, wanted = np.asarray(got), np.asarray(wanted)
    assert got.dtype == wanted.dtype
    assert got.shape == wanted.shape
    assert (got.view(np.uint8) == wanted.view(np.uint8)).all()


def run(body: Any, out: Any, *args: Any, interpret: Any = True, **options: Any) -> Any:
    return kd.kernel(body, out_type=out, interpret=interpret, **options)(*args)


@pytest.mark.parametrize("dtype", PACKED, ids=str)
def test_to_wider(dtype: Any, interpret: Any) -> None:
    """All codes, by whole words, by halves of one, and by a last byte, exactly."""
    for columns in (64, 20):
        x = numbers(dtype, (8, columns))

        def body(x: Any, same_: Any, *outs: Any) -> None:
            same_[...] = x[...]
            for out in outs:
                out[...] = x[...].astype(out.dtype)

        got = run(body, (Spec(x.shape, dtype), *(Spec(x.shape, to) for to in WIDE)), x, interpret=interpret)
        same(got[0], x)
        for to, made in zip(WIDE, got[1:], strict=True):
            same(made, x.astype(np.float32).astype(to.numpy))


@pytest.mark.parametrize("dtype", PACKED, ids=str)
def test_codes_by_way_of_values(dtype: Any, interpret: Any) -> None:
    """A value that is no load: codes go through a selection and a transposition first."""
    x = numbers(dtype, (32, 64))

    def body(x: Any, out: Any, wide: Any) -> None:
        v = x[...]
        picked = kd.where(v.astype(kd.float32) > 0, v, kd.zeros(v.shape, dtype)).T
        out[...] = picked
        wide[...] = picked.astype(kd.float32)

    out, wide = run(body, (Spec((64, 32), dtype), Spec((64, 32), kd.float32)), x, interpret=interpret)
    wanted = np.maximum(x.astype(np.float32), 0).T
    assert (out.astype(np.float32) == wanted).all()
    assert (wide == wanted).all()


@pytest.mark.parametrize("source", [kd.float32, kd.bfloat16, kd.float64, kd.int8], ids=str)
@pytest.mark.sampled(2)
def test_from_wider(source: Any, interpret: Any) -> None:
    rng = np.random.default_rng(1)
    x = (rng.standard_normal((4, 64)) * 5).astype(source.numpy)
    if source.is_float:
        x[0, :16] = [np.nan, np.inf, -np.inf, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, -0.0, -0.2, -0.3, 6.5, 7.5, -9.0]

    def body(x: Any, *outs: Any) -> None:
        for out in outs:
            out[...] = x[...].astype(out.dtype)

    got = run(body, tuple(Spec(x.shape, to) for to in PACKED), x, interpret=interpret)
    wide = np.nan_to_num(x.astype(np.float64), nan=0.0)
    for made, (low, high) in zip(got, ((-8, 7), (0, 15)), strict=False):
        whole = np.clip(np.trunc(wide), low, high) if source.is_float else x.astype(np.int64) & 15
        same(made, whole.astype(np.int8).astype(made.dtype))
    same(got[2], x.astype(np.float32).astype(ml_dtypes.float4_e2m1fn))


def test_scales(interpret: Any) -> None:
    """float8_e8m0fnu: all codes, and float32 around each of the places where rounding turns."""
    codes = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e8m0fnu)
    steps = np.arange(1, 0x1FF, dtype=np.uint32) << 22
    bits = np.concatenate([steps - 1, steps, steps + 1, [0, 0x80000000, 0xBF800000, 0x7FC00000, 0xFF800000]])
    x = bits.astype(np.uint32).view(np.float32)

    def body(codes: Any, x: Any, out: Any, wide: Any, narrow: Any, made: Any) -> None:
        out[...] = codes[...]
        wide[...] = codes[...].astype(kd.float32)
        narrow[...] = codes[...].astype(kd.bfloat16)
        made[...] = x[...].astype(kd.float8_e8m0fnu)

    types = (Spec((256,), kd.float8_e8m0fnu), Spec((256,), kd.float32), Spec((256,), kd.bfloat16))
    got = run(body, (*types, Spec(x.shape, kd.float8_e8m0fnu)), codes, x, interpret=interpret)
    same(got[0], codes)
    for made, to in zip(got[1:3], (np.float32, ml_dtypes.bfloat16), strict=True):
        wanted = codes.astype(np.float32).astype(to).astype(np.float32)
        np.testing.assert_array_equal(made.astype(np.float32), wanted)
    with np.errstate(all="ignore"):
        same(got[3], x.astype(ml_dtypes.float8_e8m0fnu))


def test_fast_unpacking() -> None:
    """Eight numbers take a shift, and a permutation, a mask and a sum for each two."""
    x = Spec((64, 256), kd.int4)

    def body(x: Any, out: Any) -> None:
        out[...] = x[...].astype(out.dtype)

    for to in (kd.bfloat16, kd.float16):
        ptx = kd.kernel(body, out_type=Spec(x.shape, to)).lower(x).ptx
        assert "cvt" not in ptx
        pairs = 64 * 256 // 128 // 2
        assert ptx.count("prmt.b32") == pairs
        assert ptx.count("shr.u32") <= pairs // 4 + 8


def test_blocks_copies_and_views(interpret: Any) -> None:
    """TMA, swizzled SMEM, pipelines, unions, transposed views, gathered rows, and a product with weights of 4 bits."""
    rng = np.random.default_rng(2)
    w = numbers(kd.int4, (64, 128))
    x = rng.standard_normal((64, 64)).astype(ml_dtypes.bfloat16)
    wide = w.astype(np.float32)
    rows = np.array([3, 1, 3, 60], np.int32)
    tiles = (kd.TilingTransform((8, 64)), kd.SwizzleTransform(32))

    def body(w: Any, x: Any, rows: Any, *refs: Any) -> None:
        tiled, turned, gathered, product, piped, tile, union, ready = refs
        kd.copy_gmem_to_smem(w, tile, ready)
        kd.barrier_wait(ready)
        tiled[...] = tile[...].astype(kd.float32)
        turned[...] = w.T[:, 2:64].astype(kd.float32)
        gathered[...] = w[rows[...]].astype(kd.float32)
        union[0][...] = w[...]
        product[...] = kd.dot(x[...], union[0][...].astype(kd.bfloat16))

        def step(_: Any, a: Any, b: Any) -> None:
            b[...] = a[...]

        spec = kd.BlockSpec((16, 64), lambda i, j: (i, j))
        kd.emit_pipeline(step, grid=(4, 2), in_specs=[spec], out_specs=[spec], max_concurrent_steps=2)(w, piped)

    got = run(
        body,
        (
            Spec((64, 128), kd.float32),
            Spec((128, 62), kd.float32),
            Spec((4, 128), kd.float32),
            Spec((64, 128), kd.float32),
            Spec((64, 128), kd.int4),
        ),
        w, x, rows,
        interpret=interpret,
        scratch_types=[
            kd.SMEM((64, 128), kd.int4, transforms=tiles),
            kd.RefUnion(kd.SMEM((64, 128), kd.int4), kd.SMEM((16,), kd.float32)),
            kd.Barrier(),
        ],
    )  # fmt: skip
    same(got[0], wide)
    same(got[1], np.ascontiguousarray(wide.T[:, 2:]))
    same(got[2], wide[rows])
    np.testing.assert_allclose(got[3], x.astype(np.float32) @ wide, rtol=1e-5, atol=1e-4)
    same(got[4], w)


def test_bytes_seen_as_numbers(interpret: Any) -> None:
    """Any framework's bytes hold them, by `bitcast`; fills and given outputs are numbers too."""
    w = numbers(kd.uint4, (8, 64))
    codes = w.view(np.uint8)
    packed = codes[:, 0::2] | codes[:, 1::2] << 4

    def body(packed: Any, out: Any, filled: Any) -> None:
        seen = packed.bitcast(kd.uint4)
        assert seen.shape == (8, 64)
        out[...] = seen[...]
        filled[0:4, 0:32] = seen[0:4, 32:64]
        filled[4:8] = 9

    given = np.zeros((8, 64), ml_dtypes.uint4), np.zeros((8, 64), ml_dtypes.uint4)
    kernel = kd.kernel(body, out_type=(Spec((8, 64), kd.uint4), Spec((8, 64), kd.uint4)), interpret=interpret)
    out, filled = kernel(packed, out=given)
    assert out is given[0]
    same(out, w)
    assert (filled[:4, :32] == w[:4, 32:]).all()
    assert (filled[4:].astype(np.int32) == 9).all()
    init = run(lambda _, out: None, Spec((4, 6), kd.int4, init=-3), w[:, :2], interpret=interpret)
    assert (init.astype(np.int32) == -3).all()


@pytest.mark.parametrize("shape", [(64, 128), (8, 8), (3, 10), (130,)], ids=str)
def test_layouts_of_bytes(shape: tuple[int, ...]) -> None:
    from kernel_dsl.layout import blocked

    axis = len(shape) - 1
    for vector in (1, 2):
        layout = blocked(shape, vector)
        wide = doubled(layout, axis)
        wide.check()
        assert halved(wide, axis) == layout
    assert halved(blocked(shape, 1), axis) is None


@pytest.mark.parametrize("dtype", [*PACKED, kd.float8_e8m0fnu, kd.complex64], ids=str)
def test_arithmetic_is_refused(dtype: Any) -> None:
    """Also by functions that leave integers as they are: an int4 and a complex number are no integers."""
    functions = (
        abs, kd.abs, kd.floor, kd.ceil, kd.trunc, kd.rint, kd.round, kd.nan_to_num, kd.conj, kd.conjugate, kd.positive,
        kd.negative, kd.sign, kd.square, kd.sum, kd.max, kd.cumsum, kd.sort, kd.argmax, lambda v: v + v, lambda v: v > v,
    )  # fmt: skip

    @kd.kernel(out_type=Spec((), kd.float32))
    def kernel(x: Any, out: Any) -> None:
        for function in functions:
            with pytest.raises(UnsupportedDType):
                function(x[...])
        if dtype != kd.float8_e8m0fnu:
            with pytest.raises(UnsupportedDType):
                kd.dot(x[...], x[...].T)

    kernel.lower(Spec((4, 8), dtype))


@pytest.mark.parametrize("dtype", PACKED, ids=str)
@pytest.mark.parametrize(("specialised", "manual"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("sums", [False, True])
@pytest.mark.sampled(4)
def test_pipelines_of_narrow_blocks(dtype: Any, specialised: bool, manual: bool, sums: bool) -> None:
    """Blocks of 4-bit elements come by either pipeline, also where nothing goes out."""
    x = numbers(dtype, (64, 64))
    spec = kd.BlockSpec((16, 64), lambda i: (i, 0))

    def step(_: Any, block: Any, *rest: Any) -> Any:
        wide = block[...].astype(kd.float32)
        if not sums:
            rest[0][...] = wide
        for barrier in rest[0 if sums else 1 :][: int(manual)]:
            kd.barrier_arrive(barrier)
        return rest[-1] + wide if sums else None

    def body(x: Any, out: Any) -> None:
        zeros = kd.zeros((16, 64), kd.float32) if sums else None
        common = {"grid": (4,), "in_specs": [spec], "out_specs": [] if sums else [spec], "max_concurrent_steps": 2}
        refs = (x,) if sums else (x, out)
        if not specialised:
            total = kd.emit_pipeline(step, init_carry=zeros, **common)(*refs)
            if sums:
                out[...] = total
            return

        def context(pipeline: Any) -> None:
            out[...] = pipeline(kd.zeros((16, 64), kd.float32))

        options = {"memory_registers": 40, "wg_axis": "wg", "num_compute_wgs": 1, "manual_consumed_barriers": manual}
        kd.emit_pipeline_warp_specialized(step, compute_context=context if sums else None, **options, **common)(*refs)

    threads = {"num_threads": 2, "thread_name": "wg"} if specialised else {}
    shape = (16, 64) if sums else (64, 64)
    got = kd.kernel(body, out_type=Spec(shape, kd.float32), **threads)(x, interpret=True)
    wanted = x.astype(np.float32)
    np.testing.assert_array_equal(got, wanted.reshape(4, 16, 64).sum(0) if sums else wanted)


@pytest.mark.parametrize("dtype", [*PACKED, kd.float8_e8m0fnu, kd.complex64], ids=str)
@pytest.mark.sampled(2)
def test_what_moves_values_takes_every_dtype(dtype: Any, interpret: Any) -> None:
    """Nothing is computed, so dtypes for memory are no exception. Some moves go through SMEM, which holds two elements a byte."""
    rng = np.random.default_rng(0)
    x = numbers(dtype, (8, 64)) if dtype.is_packed else rng.integers(-3, 4, (8, 64)).astype(dtype.numpy)
    index = rng.integers(0, 8, (8, 64)).astype(np.int32)
    order = rng.permutation(64).astype(np.int32)
    moves: list[tuple[Any, Any]] = [
        (lambda v, i: kd.take_along_axis(v, i, 0), np.take_along_axis(x, index, 0)),
        (kd.take_along_axis, np.take_along_axis(x, index, 1)),
        (lambda v, i: kd.take_along_axis(v, i.reshape(512), axis=None).reshape(8, 64), x.ravel()[index]),
        (lambda v, i: kd.take_along_axis(v, np.broadcast_to(order, (8, 64)), 1), x[:, order]),
        (lambda v, i: kd.sort(i, v, axis=1)[1], np.take_along_axis(x, np.argsort(index, 1, kind="stable"), 1)),
        (lambda v, i: kd.flip(v, 0), x[::-1]),
        (lambda v, i: kd.flip(v, (0, 1)), x[::-1, ::-1]),
        (lambda v, i: v.T.reshape(8, 64), x.T.reshape(8, 64)),
        (lambda v, i: v.reshape(32, 16).T.reshape(8, 64), x.reshape(32, 16).T.reshape(8, 64)),
        (lambda v, i: kd.concatenate([v[4:], v[:4]]), np.concatenate([x[4:], x[:4]])),
        (lambda v, i: kd.stack([v[:, ::2], v[:, 1::2]], -1).reshape(8, 64), x),
        (lambda v, i: kd.where(i > 3, v, kd.flip(v, 1)), np.where(index > 3, x, x[:, ::-1])),
        (lambda v, i: kd.broadcast_to(v[3], (8, 64)), np.broadcast_to(x[3], (8, 64))),
        (lambda v, i: kd.pad(v[1:, 2:], ((1, 0), (1, 1))), np.pad(x[1:, 2:], ((1, 0), (1, 1)))),
    ]

    def body(x: Any, index: Any, *outs: Any) -> None:
        for (move, _), out in zip(moves, outs, strict=True):
            out[...] = move(x[...], index[...])

    got = run(body, tuple(Spec((8, 64), dtype) for _ in moves), x, index, interpret=interpret)
    for made, (_, wanted) in zip(got, moves, strict=True):
        same(made, np.ascontiguousarray(wanted))
