"""`kd.library.pack_mxfp4`: weights of 4-bit floats (e2m1), two a byte as in `pack_int4`, with a power of two for each
32 rows.

OCP Microscaling Formats 1.0: sign, two bits of exponent, one of mantissa: 0, 0.5, 1, 1.5, 2, 3, 4, 6. Scales are bytes,
2 ** (byte - 127), NaN for 255.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import kernel_dsl as kd
from kernel_dsl.boundary import public
from kernel_dsl.diagnostics import of_kind, shown
from kernel_dsl.dtypes import as_dtype
from kernel_dsl.errors import BadCallArgument, BadCallValue, LibraryDType
from kernel_dsl.kernel import identified

from ..first_sizes import FirstSizes, declared_outputs, is_open
from ..refusals import check_parts, kind_and_shape
from .int4 import COLUMNS, DTYPES, MOST, PackedInt4, check_int4, unpacked_form
from .int4_numbers import BLOCK, HALF, HALF_BYTES, UNIT, floats_of, power_of
from .operands import array_address, signature

NAME = "pack_mxfp4"
LARGEST = 2  # the exponent of the greatest number, 6
BIAS, PLACE = 127, 23  # bias and position of float32's exponent
# midpoints between numbers, and whether a tie goes to the greater one, whose last bit is 0
HALVES = ((0.25, False), (0.75, True), (1.25, False), (1.75, True), (2.5, False), (3.5, True), (5.0, False))


_first = FirstSizes()


def check_packing(x: PackedInt4, kernel: str) -> None:
    """Raise `BadCallArgument`, `BadCallValue` for a matrix of 4-bit numbers whose arrays don't have its form."""
    if not isinstance(x, PackedMxfp4):
        return check_int4(x, kernel)
    if x.zeros is not None or x.group != HALF:
        what = f"zeros is {of_kind(x.zeros)}, group={shown(x.group)}"
        raise BadCallValue(kernel=kernel, what=what, hint="mxfp4 has no zeros, and groups of 32")
    blocks, N = kd.cdiv(x.shape[0], BLOCK), x.shape[1]
    parts = {"data": (x.data, kd.int8, (N, blocks * HALF)), "scales": (x.scales, kd.uint8, (2 * blocks, N))}
    return check_parts(kernel, parts, NAME)


@dataclass(frozen=True, eq=False)
class PackedMxfp4(PackedInt4):
    """A matrix (K, N) of mxfp4 numbers that `pack_mxfp4` made.

    `matmul` takes it as b beside an a of float16, bfloat16 or 8 bits.

    `data`: int8 (N, ceil(K/64) * 32), the codes of rows 32 i + 16 u + j and 32 i + 16 u + j + 8 in the low and the high half of
    byte 16 i + 2 j + u, for j from 0 to 7 and u 0 or 1.
    `scales`: uint8 (2 ceil(K/64), N), a power of two for each 32 rows. `zeros` is None, and `group` 32.
    """

    @property
    def described(self) -> tuple[Any, ...]:
        """The properties that a plan depends on."""
        return (NAME, self.shape, *(signature(x, "matmul") for x in self.arrays))

    @property
    def fast(self) -> bool:
        """Whether TMA can read all of it in place."""
        return self.shape[1] % 16 == 0 and not any(array_address(x) % 16 for x in self.arrays)

    def unpacked(self, dtype: Any, **how: Any) -> Any:
        """The matrix (K, N) in a floating dtype, stored by columns. `how`: `stream`, `interpret`, as for kernels."""
        K, N = self.shape
        sizes = _first.sizes(("unpack", NAME, as_dtype(dtype)), MOST, K=(K, 1), N=(N, 1))
        return unpack_kernel(*sizes, as_dtype(dtype))(*self.arrays, **how)[:, :K].T


@cache
def pack_kernel(K: Any, N: Any, dtype: Any) -> Any:
    """The kernel `w -> (data, scales)`. Each call gives Dims."""
    blocks = kd.cdiv(K, BLOCK)

    def body(w: Any, data: Any, scales: Any) -> None:
        number, columns = kd.program_id(0), kd.ds(kd.program_id(1) * COLUMNS, COLUMNS)
        for half in range(2):
            first = number * BLOCK + half * HALF
            x = w[kd.ds(first, HALF), columns].astype(kd.float32)
            greatest = kd.bitcast_convert_type(kd.max(kd.abs(x), axis=0), kd.int32)
            exponent = kd.minimum(kd.maximum((greatest >> PLACE) - LARGEST, 0), 2 * BIAS - 1)
            scales[number * 2 + half, columns] = exponent.astype(kd.uint8)
            power = kd.bitcast_convert_type((2 * BIAS - exponent) << PLACE, kd.float32)[None]

            def coded(unit: int, first: Any = first, power: Any = power) -> Any:
                x = w[kd.ds(first + unit * UNIT, UNIT), columns].astype(kd.float32)
                size = kd.abs(x) * power
                code = kd.where(x < 0, 8, 0)
                for middle, belongs in HALVES:
                    code = code + (size >= middle if belongs else size > middle).astype(kd.int32)
                return code

            both = [coded(2 * u) | (coded(2 * u + 1) << 4) for u in range(2)]
            made = kd.stack([y.T.astype(kd.uint8).astype(kd.int8) for y in both], axis=2)
            place = kd.ds((number * 2 + half) * HALF_BYTES, HALF_BYTES)
            data[columns, place] = made.reshape(COLUMNS, HALF_BYTES)

    outs = kd.ShapeDtypeStruct((N, blocks * HALF), kd.int8), kd.ShapeDtypeStruct((2 * blocks, N), kd.uint8)
    made = kd.kernel(
        body,
        out_type=outs,
        grid=(blocks, kd.cdiv(N, COLUMNS)),
        shapes={0: (K, N)} | declared_outputs(outs, 1) if is_open(K, N) else None,
        name="mxfp4_pack",
    )
    return identified(made, K, N, dtype)


@cache
def unpack_kernel(K: Any, N: Any, dtype: Any) -> Any:
    """The kernel `(data, scales) -> w`, (N, K rounded up to whole blocks). Each call gives Dims."""
    blocks, shapes, out = unpacked_form(K, N, 1, dtype)

    def body(data: Any, scales: Any, out: Any) -> None:
        block, rows = kd.program_id(0), kd.ds(kd.program_id(1) * COLUMNS, COLUMNS)
        bytes_ = data[rows, kd.ds(block * HALF, HALF)].reshape(COLUMNS, 2, UNIT, 2)
        powers = [power_of(scales[block * 2 + half, rows])[:, None] for half in range(2)]
        for unit in range(BLOCK // UNIT):
            x = floats_of(bytes_[:, unit // 4, :, unit % 4 // 2], unit % 2, powers[unit // 4])
            out[rows, kd.ds(block * BLOCK + unit * UNIT, UNIT)] = x.astype(dtype)

    made = kd.kernel(
        body,
        out_type=out,
        grid=(blocks, kd.cdiv(N, COLUMNS)),
        shapes=shapes,
        name="mxfp4_unpack",
    )
    return identified(made, K, N, dtype)


@partial(public, name=NAME)
def pack_mxfp4(w: Any, *, stream: Any = None, interpret: Any = None) -> PackedMxfp4:
    """Weights (K, N), float16, bfloat16 or float32 in any strides, rounded to mxfp4, as an operand b of `matmul`.

    Each 32 rows of a column share a power of two; divided by it, their greatest magnitude is from 4 to below 8. Numbers
    are rounded to the nearest of e2m1, ties to even; those above 6 become 6. Weights are finite; beside a float16 a
    they are below 2 ** 16. `stream`, `interpret`: as for kernels. Raises `BadCallArgument` for a wrong array,
    `BadCallValue` for one without elements. The format is that of OCP Microscaling Formats 1.0.
    """
    shape = getattr(w, "shape", None)
    hint = "w is (K, N), float16, bfloat16 or float32"
    if not isinstance(shape, tuple) or not hasattr(w, "dtype") or len(shape) != 2:
        raise BadCallArgument(kernel=NAME, what=f"w is {kind_and_shape(w)}", hint=hint)
    if as_dtype(w.dtype) not in DTYPES:
        raise LibraryDType(kernel=NAME, what=f"w is {as_dtype(w.dtype)}", hint=hint)
    K, N = int(w.shape[0]), int(w.shape[1])
    if not K or not N:
        raise BadCallValue(kernel=NAME, what=f"w is {(K, N)}", hint="give it a row and a column or more")
    sizes = _first.sizes((NAME, as_dtype(w.dtype)), MOST, K=(K, 1), N=(N, 1))
    data, scales = pack_kernel(*sizes, as_dtype(w.dtype))(w, stream=stream, interpret=interpret)
    return PackedMxfp4(data, scales, None, (K, N), HALF)
