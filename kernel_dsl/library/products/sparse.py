"""`kd.library.sparse_compress`, `sparse_decompress` and their kernels: matrices with half of the elements stored (2:4
sparsity).

Two of each four neighbours along K are stored, with four bits for their positions. For float32, which is multiplied as
tf32, one of two is stored. The bits have the order of the registers of `wgmma.mma_async.sp` (PTX ISA 9.7.15.6.1), so a
lane loads one word.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import kernel_dsl as kd
from kernel_dsl.boundary import public
from kernel_dsl.diagnostics import of_kind
from kernel_dsl.dtypes import FP8, DType, as_dtype
from kernel_dsl.errors import BadCallArgument, BadCallValue, LibraryDType, LibraryShape
from kernel_dsl.jax import is_traced
from kernel_dsl.kernel import identified
from kernel_dsl.layouts import meta_step

from ..first_sizes import FirstSizes, declared_outputs, dim_of, is_open
from ..jax_trees import known_to_jax
from ..refusals import check_parts, kind_and_shape
from .operands import array_address, element_strides, signature, why_not_tma

COMPRESS, DECOMPRESS = "sparse_compress", "sparse_decompress"
DTYPES = (kd.float16, kd.bfloat16, kd.float32, *FP8, kd.int8, kd.uint8)
ROWS = 64  # rows of a block of these kernels, and of an instruction's left side
GROUPS = 16  # groups of elements along K in such a block
FIRST, SECOND = 4, 14  # the metadata for the first, or the second, element of two
MOST = 2**24  # rows and columns of matrices that share a kernel
_CODES = {1: kd.uint8, 2: kd.uint16, 4: kd.uint32}


def group_of(dtype: DType) -> int:
    """The number of neighbours in a group, half of which is stored."""
    return 2 if dtype.itemsize == 4 else 4


@dataclass(frozen=True, eq=False)
class SparseMatrix:
    """A matrix (M, K) with at most two numbers other than 0 in each four neighbours of a row (of float32: one of two).

    `values`: (M, K / 2), the stored numbers in order. `meta`: uint32 (ceil(K / 64), 128 ceil(M / 64)), for float32
    (ceil(K / 32), ...), their positions: the `sparse_meta` of `kd.wgmma`; beyond the end the first two zeros count as
    stored. `sparse_compress` makes it, `sparse_matmul` and `matmul` take it as a.
    """

    values: Any
    meta: Any
    shape: tuple[int, int]

    def __post_init__(self) -> None:
        known_to_jax(type(self))

    @property
    def dtype(self) -> Any:
        """The dtype of the values."""
        return as_dtype(self.values.dtype)

    @property
    def described(self) -> tuple[Any, ...]:
        """The properties that a plan depends on."""
        return ("sparse", self.shape, signature(self.values, COMPRESS), signature(self.meta, COMPRESS))

    @property
    def fast(self) -> bool:
        """Whether TMA can read all of it in place."""
        strides = element_strides(self.values)
        shape = tuple(self.values.shape)
        why = why_not_tma(shape, strides or (shape[1], 1), self.dtype.itemsize, array_address(self.values))
        return not why and array_address(self.meta) % 16 == 0

    def dense(self, *, stream: Any = None, interpret: Any = None) -> Any:
        """The matrix (M, K). `stream`, `interpret`: as for kernels."""
        M, K = self.shape
        sizes = _first.sizes((DECOMPRESS, self.dtype), MOST, M=(M, 1), K=(K, group_of(self.dtype)))
        return decompress_kernel(*sizes, self.dtype)(self.values, self.meta, stream=stream, interpret=interpret)


_first = FirstSizes()


def check_stored(x: SparseMatrix, kernel: str) -> None:
    """Raise `BadCallArgument`, `BadCallValue` for a matrix whose arrays don't have its form."""
    M, K = x.shape
    found = as_dtype(x.values.dtype) if hasattr(x.values, "dtype") else None
    if found is None or found not in DTYPES:
        what = f"values is {of_kind(x.values) if found is None else found}"
        raise LibraryDType(kernel=kernel, what=what, hint=f"one of {', '.join(map(str, DTYPES))}")
    meta = (x.meta, kd.uint32, (kd.cdiv(K, meta_step(found)), 128 * kd.cdiv(M, ROWS)))
    check_parts(kernel, {"values": (x.values, found, (M, K // 2)), "meta": meta}, COMPRESS)


# --- kernels --------------------------------------------------------------------------------------


def _key(x: Any, dtype: DType) -> Any:
    """An integer that grows with the magnitude; NaN has the greatest, and only 0 has 0."""
    if not dtype.is_float:
        wide = x.astype(kd.int32)
        return kd.where(wide < 0, -wide, wide)
    code = _CODES[dtype.itemsize]
    bits = kd.bitcast_convert_type(x, code).astype(kd.uint32) & ((1 << dtype.bits - 1) - 1)
    return bits.astype(kd.int32)


def _half(x: Any, number: Any) -> Any:
    """Join the bits of `number` neighbouring groups: (rows, 16) to (rows, 16 / number)."""
    shifts = kd.arange(number, dtype=kd.uint32) * 4
    return kd.sum(x.reshape(x.shape[0], -1, number) << shifts[None, None], axis=2)


def _words(nibbles: Any, store: Any, narrow: bool) -> None:
    """Call `store(index, words)` with the metadata of 64 rows; `index` is for a Ref (warp, row of 8, 2, 2)."""
    if narrow:
        words = _half(nibbles, 8).reshape(4, 2, 8, 2)  # warp, half of rows, row of 8, half of K
        for half in range(2):
            store((slice(None), slice(None), slice(None), half), words[:, half])
        return
    halves = _half(nibbles, 4).reshape(4, 2, 8, 2, 2)  # warp, half of rows, row of 8, quarter of K
    store((slice(None),) * 4, halves[:, 0] | halves[:, 1] << 16)


@cache
def compress_kernel(M: Any, K: Any, dtype: DType, checked: bool) -> Any:
    """The kernel `a -> (values, meta[, groups that have too many numbers])`. Rows of values are multiples of 16 bytes.

    Each call gives the sizes that are Dims.
    """
    group, step = group_of(dtype), meta_step(dtype)
    blocks = (kd.cdiv(K, step), kd.cdiv(M, ROWS))
    any_size = is_open(M, K)

    def body(a: Any, values: Any, meta: Any, *rest: Any) -> None:
        if not any_size and not M * K:
            return
        column, row = kd.program_id(0), kd.program_id(1)
        rows = kd.ds(row * ROWS, ROWS)
        parts = [a[rows, kd.ds(column * step + i, GROUPS, group)] for i in range(group)]
        keys = [_key(x, dtype) for x in parts]
        if group == 2:
            second = keys[1] > keys[0]
            values[rows, kd.ds(column * GROUPS, GROUPS)] = kd.where(second, parts[1], parts[0])
            nibbles = kd.where(second, kd.uint32(SECOND), kd.uint32(FIRST))
            too_many = (keys[0] > 0) & (keys[1] > 0)
        else:
            kept: list[Any] = []
            for i, key in enumerate(keys):
                ahead = [
                    (other >= key if j < i else other > key).astype(kd.int32) for j, other in enumerate(keys) if j != i
                ]
                kept.append(ahead[0] + ahead[1] + ahead[2] < 2)
            low = kd.where(kept[0], 0, kd.where(kept[1], 1, 2))
            high = kd.where(kept[3], 3, kd.where(kept[2], 2, 1))
            first = kd.where(kept[0], parts[0], kd.where(kept[1], parts[1], parts[2]))
            last = kd.where(kept[3], parts[3], kd.where(kept[2], parts[2], parts[1]))
            for i, x in enumerate((first, last)):
                values[rows, kd.ds(column * (2 * GROUPS) + i, GROUPS, 2)] = x
            nibbles = (low | high << 2).astype(kd.uint32)
            counts = [(key > 0).astype(kd.int32) for key in keys]
            too_many = counts[0] + counts[1] + counts[2] + counts[3] > 2
        own = meta.at[column, kd.ds(row * 128, 128)].reshape(4, 8, 2, 2)

        def store(index: Any, words: Any) -> None:
            own[index] = words

        _words(nibbles, store, dtype.itemsize == 1)
        if rest:
            kd.atomic_add(rest[0], kd.sum(too_many.astype(kd.int32)))

    outs = (
        kd.ShapeDtypeStruct((M, kd.cdiv(K * dtype.itemsize // 2, 16) * 16 // dtype.itemsize), dtype, init=0),
        kd.ShapeDtypeStruct((blocks[0], blocks[1] * 128), kd.uint32),
        *([kd.ShapeDtypeStruct((), kd.int32, init=0)] if checked else []),
    )
    made = kd.kernel(
        body,
        out_type=outs,
        grid=blocks if any_size else tuple(max(n, 1) for n in blocks),
        shapes={0: (M, K)} | declared_outputs(outs[:2], 1) if any_size else None,
        name="sparse_compress",
    )
    return identified(made, M, K, dtype, checked)


@cache
def decompress_kernel(M: Any, K: Any, dtype: DType) -> Any:
    """The kernel `(values, meta) -> a`. Each call gives the sizes that are Dims."""
    group, step = group_of(dtype), meta_step(dtype)
    any_size = is_open(M, K)
    half = dim_of("stored", MOST // 2, group // 2) if any_size else K // 2

    def body(values: Any, meta: Any, out: Any) -> None:
        if not any_size and not M * K:
            return
        column, block = kd.program_id(0), kd.program_id(1)
        rows = kd.ds(block * ROWS, ROWS)
        row, number = kd.broadcasted_iota(kd.int32, (ROWS, GROUPS), 0), kd.broadcasted_iota(kd.int32, (ROWS, GROUPS), 1)
        lane = ((row >> 4) << 5) + ((row & 7) << 2)
        if dtype.itemsize == 1:
            place, shift = lane + ((number >> 3) << 1) + (row >> 3 & 1), (number & 7) << 2
        else:
            place, shift = lane + (number >> 2), ((number & 3) << 2) + ((row >> 3 & 1) << 4)
        word = meta[column, block * 128 + place]
        bits = (word >> shift.astype(kd.uint32)).astype(kd.int32) & 15
        zero = kd.zeros((ROWS, GROUPS), kd.float32).astype(dtype)
        if group == 2:
            x = values[rows, kd.ds(column * GROUPS, GROUPS)]
            found = [kd.where(bits == code, x, zero) for code in (FIRST, SECOND)]
        else:
            first, last = (values[rows, kd.ds(column * (2 * GROUPS) + i, GROUPS, 2)] for i in range(2))
            found = [kd.where(bits & 3 == i, first, kd.where(bits >> 2 == i, last, zero)) for i in range(4)]
        for i, x in enumerate(found):
            out[rows, kd.ds(column * step + i, GROUPS, group)] = x

    blocks, out = (kd.cdiv(2 * half, step), kd.cdiv(M, ROWS)), kd.ShapeDtypeStruct((M, 2 * half), dtype)
    shapes = {0: (M, half), 1: (dim_of("steps"), dim_of("words"))} | declared_outputs([out], 2) if any_size else None
    made = kd.kernel(
        body,
        out_type=out,
        grid=blocks if any_size else tuple(max(n, 1) for n in blocks),
        shapes=shapes,
        name="sparse_decompress",
    )
    return identified(made, M, K, dtype)


# --- calls ----------------------------------------------------------------------------------------


@partial(public, name=COMPRESS)
def sparse_compress(a: Any, *, prune: bool = False, stream: Any = None, interpret: Any = None) -> SparseMatrix:
    """Store half of a matrix (M, K) in any strides: float16, bfloat16, float32, float8_e4m3fn, float8_e5m2, int8 or uint8.

    Each four neighbours of a row, from a multiple of four on, must have at most two numbers other than 0; in float32
    each two at most one, as tensor cores require. More are an error, for which the call waits for the GPU. With `prune`
    the greatest magnitudes are kept (of equal ones the first; NaN is the greatest), and the call does not wait. -0 may
    become 0.

    Raises `BadCallArgument` for a wrong array, `BadCallValue` for a K that is no multiple of four (two), and for too
    many numbers. `stream`, `interpret`: as for kernels. The metadata have the order of `wgmma.mma_async.sp` (PTX ISA
    9.7.15.6.1).
    """
    shape, wanted = getattr(a, "shape", None), f"a is (M, K), {', '.join(map(str, DTYPES))}"
    if not isinstance(shape, tuple) or not hasattr(a, "dtype") or len(shape) != 2:
        raise BadCallArgument(kernel=COMPRESS, what=f"a is {kind_and_shape(a)}", hint=wanted)
    if as_dtype(a.dtype) not in DTYPES:
        raise LibraryDType(kernel=COMPRESS, what=f"a is {as_dtype(a.dtype)}", hint=wanted)
    M, K, dtype = int(a.shape[0]), int(a.shape[1]), as_dtype(a.dtype)
    group = group_of(dtype)
    if K % group:
        hint = f"K is a multiple of {group}: pad it with zeros"
        raise LibraryShape(kernel=COMPRESS, what=f"a is {(M, K)} of {dtype}", hint=hint)
    sizes = _first.sizes((COMPRESS, dtype, prune), MOST, M=(M, 1), K=(K, group))
    if not prune and is_traced([a]):
        hint = "prune=True keeps the greatest of each group; or compress before the function that JAX traces"
        raise BadCallArgument(kernel=COMPRESS, what="a is a value that JAX traces, whose zeros no one sees", hint=hint)
    values, meta, *rest = compress_kernel(*sizes, dtype, not prune)(a, stream=stream, interpret=interpret)
    if rest and (count := int(rest[0])):
        most = "two numbers" if group == 4 else "one number"
        what = f"{count} of {M * K // group} groups of {group} neighbours have more than {most} other than 0"
        raise BadCallValue(kernel=COMPRESS, what=what, hint="prune=True keeps the greatest of each")
    return SparseMatrix(values if values.shape[1] == K // 2 else values[:, : K // 2], meta, (M, K))


@partial(public, name=DECOMPRESS)
def sparse_decompress(compressed: Any, *, stream: Any = None, interpret: Any = None) -> Any:
    """The matrix (M, K) of a `SparseMatrix`, row-major, in the dtype of its values.

    `stream`, `interpret`: as for kernels. Raises `BadCallArgument` for anything but a `SparseMatrix`.
    """
    return _sparse(compressed, DECOMPRESS).dense(stream=stream, interpret=interpret)


def _sparse(x: Any, kernel: str) -> SparseMatrix:
    if not isinstance(x, SparseMatrix):
        what = f"compressed is {of_kind(x)}"
        raise BadCallArgument(kernel=kernel, what=what, hint="make it by `kd.library.sparse_compress(a)`")
    check_stored(x, kernel)
    return x
