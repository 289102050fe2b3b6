"""What to write for names that other array languages have and this one does not, for errors."""

from __future__ import annotations

from typing import Any, cast

from .boundary import OPERATIONS
from .diagnostics import at_user_line, shown
from .errors import UnknownName
from .values import Array

_FLAT = "`v.reshape(-1)` is flat; a Ref has `reshape`, too"
_CONVERT = "`v.astype(kd.float32)` converts a value"
_LANES = "a body computes on whole arrays, and lanes have no number: `kd.arange(n)` is the index of each element"
_ORDER = "operations of a warpgroup happen in program order; `kd.commit_smem()` precedes copies from SMEM"
_SMEM = "scratch is an argument of the body: `scratch_types=[kd.SMEM(shape, dtype)]`; values are in registers"
_STRIDES = "an index of a Ref, such as `x[i, kd.ds(j, 64)]`, uses its strides"
_GATHER = "`kd.take_along_axis(v, indices, axis)` picks elements of a value, and `x[indices]` those of a Ref"
_TRIANGLE = "compare indices: `kd.where(kd.arange(m)[:, None] >= kd.arange(n)[None], v, 0)`"
_RANDOM = "`kd.random` has `bits`, `uniform`, `normal` and `bernoulli`"
_PRODUCT = "`kd.dot(a, b)`, or `a @ b`"
_AXES = "`v.transpose(1, 0)` orders axes by number"
_AXIS = "`v[:, None]` adds an axis"
_SET = "store to a Ref, `x[index] = value`; values are immutable: `kd.where(mask, new, v)`"
_COPY = "values are immutable, and a load copies: `v = x[...]`"

WORDS: dict[str, str] = {
    **dict.fromkeys(("ravel", "flatten", "flat"), _FLAT),
    **dict.fromkeys(("to", "cast", "float", "int", "half", "type"), _CONVERT),
    **dict.fromkeys(("view", "view_as"), "`kd.bitcast_convert_type(v, dtype)` keeps the bits, `v.reshape(shape)` another shape"),
    **dict.fromkeys(("thread_idx", "threadIdx", "blockIdx", "lane_id", "laneid", "warp_id"), _LANES),
    **dict.fromkeys(("shfl_sync", "ballot", "shuffle"), _LANES),
    **dict.fromkeys(("syncthreads", "sync_threads", "syncwarp", "debug_barrier", "barrier", "bar_sync", "sync"), _ORDER),
    **dict.fromkeys(("shared", "alloc_shared", "alloc_fragment", "alloc_local", "shared_array", "local_array"), _SMEM),
    **dict.fromkeys(("stride", "strides", "data_ptr", "make_block_ptr", "advance"), _STRIDES),
    **dict.fromkeys(("gather", "take"), _GATHER),
    **dict.fromkeys(("scatter", "put", "at"), "a Ref takes stores by indices, `x[i] = v`, and `kd.atomic_add(x.at[i], v)`"),
    **dict.fromkeys(("tril", "triu"), _TRIANGLE),
    **dict.fromkeys(("rand", "randn", "randint", "philox"), _RANDOM),
    **dict.fromkeys(("gemm", "dot_general", "einsum", "tensordot", "inner", "mm", "bmm"), _PRODUCT),
    **dict.fromkeys(("permute", "trans", "mT"), _AXES),
    **dict.fromkeys(("unsqueeze", "expand"), _AXIS),
    **dict.fromkeys(("fill", "masked_fill", "set", "store", "add_", "copy_", "fill_"), _SET),
    **dict.fromkeys(("copy", "clone", "contiguous"), _COPY),
    **dict.fromkeys(("item", "tolist"), "a value has no data while tracing: compute with it, or store it to an output"),
    **dict.fromkeys(("numel", "nbytes", "itemsize"), "`x.size` counts elements, and `x.dtype.itemsize` bytes of one"),
    **dict.fromkeys(("cat", "hstack", "vstack"), "`kd.concatenate([v, w], axis=0)` and `kd.stack([v, w], axis=0)`"),
    **dict.fromkeys(("join", "interleave"), "`kd.stack([v, w], axis=-1)`, then `.reshape(-1)` to interleave"),
    **dict.fromkeys(("repeat", "tile"), "`kd.broadcast_to(v[:, None], (n, times)).reshape(-1)` repeats each element"),
    **dict.fromkeys(("range", "static_range", "Parallel", "Pipelined", "serial", "grid"),
                    "Python's `for` unrolls; `kd.fori_loop` and `@kd.loop` are loops; `kd.emit_pipeline` prefetches"),
    **dict.fromkeys(("program", "pallas_call", "prim_func", "jit"), "decorate the body with `@kd.kernel(out_type=, grid=)`"),
    **dict.fromkeys(("histogram", "bincount"), "`kd.atomic_add(counts.at[v], 1)` on an output with `init=0`"),
    **dict.fromkeys(("nonzero", "argwhere", "unique"),
                    "shapes are static: `kd.cumsum(mask.astype(kd.int32), exclusive=True)` numbers the elements to keep"),
    **dict.fromkeys(("silu", "swish"), "`v * kd.sigmoid(v)`"),
    "softmax": "`e = kd.exp(v - v.max()); e / e.sum()`",
    "logsumexp": "`m = v.max(); m + kd.log(kd.exp(v - m).sum())`",
    "gelu": "`0.5 * v * (1 + kd.erf(v * 0.5**0.5))`",
    "outer": "`v[:, None] * w[None]`",
    "norm": "`kd.sqrt((v * v).sum())`",
    "std": "`kd.sqrt(v.var())`",
    "diff": "`v[1:] - v[:-1]`",
    "roll": "`kd.concatenate([v[-n:], v[:-n]])`",
    "eye": "`(kd.arange(n)[:, None] == kd.arange(n)[None]).astype(kd.float32)`",
    "linspace": "`start + step * kd.arange(n)`",
    "empty": "`kd.zeros(shape, dtype)`",
    "reduce": "`kd.sum`, `kd.max` and kin; `kd.associative_scan(fn, v)[-1]` reduces by a function",
    "fdiv": "`kd.div(x, y, approx=True)`, or `x / y`",
    "popc": "`kd.bitwise_count(v)`",
    "dslice": "`kd.ds(start, size)`",
    "constexpr": "the body closes over constants of Python: make the kernel in a function that takes them",
    "max_contiguous": "`kd.multiple_of(x, n)` states a divisor",
    "device_assert": "`kd.debug_check(condition, message)`",
    "bit_length": "a traced integer has no Python methods: `kd.specialise(x.shape[0])` is an int",
}  # fmt: skip


HANDLES = {"T", "at", "dtype", "memory_space", "ndim", "shape", "size"}  # what values and Refs have beside methods


def missing(handle: Any, name: str) -> Any:
    """`__getattr__` of values and Refs. Raises `UnknownName` with what to write, or `AttributeError` for a private name."""
    kind = type(handle).__name__
    if name.startswith("_"):  # Python and other libraries ask for such names themselves
        raise AttributeError(f"{kind!r} object has no attribute {name!r}")
    if not isinstance(handle, Array) and name in vars(Array):
        hint = f"load the Ref first: `x[...].{name}` is of a value"
    else:
        hint = WORDS.get(name) or (f"it is a function: `kd.{name}(...)`" if name in OPERATIONS else _near(handle, name))
    raise cast(
        "Any", at_user_line(UnknownName(owner=f"a {'value' if kind == 'Array' else kind}", name=shown(name), hint=hint))
    )


def _near(handle: Any, name: str) -> str:
    """The hint for a name that no array language has."""
    from difflib import get_close_matches

    own = [key for key in dir(type(handle)) if key in HANDLES or key in OPERATIONS]
    near = [f"`.{key}`" for key in get_close_matches(name, own, 2)]
    near = near or [f"`kd.{key}(...)`" for key in get_close_matches(name, list(OPERATIONS), 2)]
    if near:
        return f"did you mean {' or '.join(near)}?"
    return "`kd.__all__` and docs/reference.md list all names"
