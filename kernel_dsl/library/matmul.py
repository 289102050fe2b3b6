"""`kd.library.matmul`: the product of two matrices as a plain function."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import fields, replace
from functools import partial
from numbers import Integral
from typing import Any

import kernel_dsl as kd
from kernel_dsl.boundary import checks_itself, public
from kernel_dsl.diagnostics import shown
from kernel_dsl.dtypes import FP8, DType, as_dtype
from kernel_dsl.errors import BadCallArgument, BadCallValue
from kernel_dsl.promote import join
from kernel_dsl.stages import target_named
from kernel_dsl.target import Feature

from .choose import choose, is_mixed
from .fallback import fallback_kernel
from .persistent_matmul import MatmulConfig, Problem, matmul_kernel

_log = logging.getLogger("kernel_dsl")
MANY = 1024  # plans that are kept
_BYTES = (kd.int8, kd.uint8)
_FAST = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int8", "uint8")


def is_transposed(x: Any) -> bool:
    """Whether a matrix is stored by columns: its `.T` is then the contiguous one."""
    strides = element_strides(x)
    return strides is not None and strides[0] == 1 and strides[1] != 1 and x.shape[1] > 1


def element_strides(x: Any) -> tuple[int, ...] | None:
    """Strides in elements; None for a struct, which is row-major."""
    if callable(getattr(x, "stride", None)):
        return tuple(x.stride())
    strides = getattr(x, "strides", None)
    if strides is None:
        return None
    return tuple(s // as_dtype(x.dtype).itemsize for s in strides)


def default_out(dtype: DType, b_dtype: DType) -> DType:
    """bfloat16 for fp8, int32 for 8-bit integers, else what the inputs promote to. Raises `NoCommonDType`."""
    if dtype in FP8 and b_dtype in FP8:
        return kd.bfloat16
    common = join(dtype, b_dtype)
    if common in FP8:
        return kd.bfloat16
    return kd.int32 if common.is_integer and dtype.itemsize == b_dtype.itemsize == 1 else common


def _on_tensor_cores(a: DType, b: DType, precision: str | None) -> bool:
    """Whether the fast kernel has instructions for a product."""
    if a != b:
        sixteen = (kd.float16, kd.bfloat16)
        mixed = (a == kd.int8 and b in sixteen) or (b == kd.int8 and a in sixteen)
        return mixed or (a in FP8 and b in FP8) or (a in _BYTES and b in _BYTES)
    return a.name in _FAST or (a == kd.float32 and precision == "tf32")


@partial(public, name="matmul")
class Matmul:
    """`matmul(a, b)`: a (M, K) times b (K, N), each row-major or transposed (`w.T`), in float32 or int32 accumulators.

    Tensor cores multiply 16-bit floats, fp8 and 8-bit integers of any two kinds, int8 with a 16-bit float, and as float32
    rounded to tf32. All else that has a common dtype is multiplied exactly, and slowly.

    `out_dtype`: by default the inputs' common dtype, bfloat16 for fp8, int32 for 8-bit integers. `bias`: (N,), added to each
    row; `c`: (M, N), added; `activation`: a function of traced values, applied last. `precision="tf32"`: round float32
    operands to tf32. `config`: a `MatmulConfig` instead of the chosen one. `out`, `stream`, `interpret`: as for kernels; `out`
    may be `c`. Arrays that TMA can't take go to a slower kernel, with a log line. Raises `BadCallArgument` for what are no such
    arrays, `BadCallValue` for shapes that don't fit and an `out` that is `a` or `b`, `NoCommonDType`.
    """

    def __init__(self) -> None:
        self._plans: dict[Any, Any] = {}  # by what calls look like: a second one decides nothing

    def __repr__(self) -> str:
        return "<kd.library.matmul>"

    @checks_itself("activation", "precision", "config")
    def __call__(
        self,
        a: Any,
        b: Any,
        *,
        out_dtype: Any = None,
        bias: Any = None,
        c: Any = None,
        activation: Callable[[Any], Any] | None = None,
        precision: str | None = None,
        config: MatmulConfig | None = None,
        out: Any = None,
        stream: Any = None,
        interpret: Any = None,
    ) -> Any:
        kernel, args = self._plan(a, b, out_dtype, bias, c, activation, precision, config, None, out)
        if out is not None:
            check_apart(out, {"a": a, "b": b}, "matmul")
        return kernel(*args, out=out, stream=stream, interpret=interpret)

    @checks_itself("activation", "precision", "config", "target")
    def lower(
        self,
        a: Any,
        b: Any,
        *,
        out_dtype: Any = None,
        bias: Any = None,
        c: Any = None,
        activation: Callable[[Any], Any] | None = None,
        precision: str | None = None,
        config: MatmulConfig | None = None,
        target: str | None = None,
    ) -> Any:
        """The stages of the kernel that a call with such arguments runs."""
        kernel, args = self._plan(a, b, out_dtype, bias, c, activation, precision, config, target)
        return kernel.lower(*args, target=target)

    def _plan(
        self,
        a: Any,
        b: Any,
        out_dtype: Any,
        bias: Any,
        c: Any,
        activation: Callable[[Any], Any] | None,
        precision: str | None,
        config: MatmulConfig | None,
        target: str | None,
        out: Any = None,
    ) -> tuple[Any, list[Any]]:
        extra = [x for x in (bias, c) if x is not None]
        described = tuple([signature(x, "matmul") for x in ((a, b, *extra) if out is None else (a, b, *extra, out))])
        options = {"activation": activation, "precision": precision, "config": config, "target": target}
        key = (*described, bias is None, c is None, out is None, str(out_dtype), *options.values())
        found = known_plan(self._plans, key, "matmul", options)
        if found is None:
            problem, args = self.describe(a, b, out_dtype, bias, c)
            kernel = self._kernel(problem, args, activation, precision, config, target, out)
            if len(self._plans) >= MANY:
                self._plans.clear()
            found = self._plans[key] = (kernel, problem.a_transposed, problem.b_transposed)
        kernel, ta, tb = found
        return kernel, [a.T if ta else a, b.T if tb else b, *extra]

    def _kernel(
        self,
        problem: Problem,
        args: list[Any],
        activation: Callable[[Any], Any] | None,
        precision: str | None,
        config: MatmulConfig | None,
        target: str | None,
        out: Any,
    ) -> Any:
        check_options(activation, precision, config)
        machine = target_named(target)
        why = self.refusal(problem, args, precision, machine) or out_refusal(out)
        if why:
            _log.info("matmul: %s; using the general kernel", why)
            return fallback_kernel(problem, activation, precision)
        blocks = machine.limits.multiprocessors
        chosen = config or choose(problem, blocks, activation is None)
        if is_mixed(problem.swapped):  # the side that is widened is the left one
            chosen = replace(chosen, swapped=True)
        return matmul_kernel(problem, chosen, blocks, activation)

    def describe(self, a: Any, b: Any, out_dtype: Any, bias: Any, c: Any) -> tuple[Problem, list[Any]]:
        """The problem, and the kernel's arguments. Raises `BadCallArgument`, `BadCallValue`."""
        for name, x in (("a", a), ("b", b)):
            check_array(x, name, 2, "a is (M, K) and b is (K, N)")
        (M, K), (K2, N) = tuple(a.shape), tuple(b.shape)
        if K != K2:
            what = f"a is {(M, K)} and b is {(K2, N)}"
            raise BadCallValue(
                kernel="matmul", what=what, hint="the columns of a are the rows of b; transpose with `.T`"
            )
        ta, tb = is_transposed(a), is_transposed(b)
        dtype, b_dtype = as_dtype(a.dtype), as_dtype(b.dtype)
        out = default_out(dtype, b_dtype) if out_dtype is None else as_dtype(out_dtype)
        if out.name.startswith("complex"):
            raise BadCallArgument(kernel="matmul", what=f"out_dtype is {out}", hint="complex values are only copied")
        problem = Problem(M, N, K, dtype, b_dtype, out, ta, tb, bias is not None, c is not None)
        extra = [x for x in (bias, c) if x is not None]
        for name, x, shape in (("bias", bias, (N,)), ("c", c, (M, N))):
            if x is not None:
                check_array(x, name, len(shape), f"an array of shape {shape}")
            if x is not None and tuple(x.shape) != shape:
                raise BadCallValue(kernel="matmul", what=f"{name} is {tuple(x.shape)}", hint=f"its shape is {shape}")
        return problem, [a.T if ta else a, b.T if tb else b, *extra]

    def refusal(self, p: Problem, args: list[Any], precision: str | None, target: Any) -> str:
        """Why the fast kernel can't do it; empty where it can."""
        if not target.supports(Feature.WGMMA | Feature.TMA):
            return f"{target} has no wgmma"
        if not _on_tensor_cores(p.dtype, p.b_dtype, precision):
            return f"{p.dtype} and {p.b_dtype} are multiplied exactly"
        for dtype, along_k, word in ((p.dtype, not p.a_transposed, "a"), (p.b_dtype, p.b_transposed, "b")):
            if dtype.itemsize != 2 and not along_k:
                return f"{dtype} operands must be contiguous along K, and {word} is not"
        if not p.M or not p.N or not p.K:
            return "there is nothing to multiply"
        for name, x in zip("ab", args, strict=False):
            strides = element_strides(x)
            row = x.shape[1] if strides is None else strides[0]
            item = as_dtype(x.dtype).itemsize
            if strides is not None and strides[1] != 1 and x.shape[1] > 1:
                return f"{name} is strided along both axes"
            if x.shape[0] > 1 and row < 0:
                return f"rows of {name} go backwards"
            if x.shape[0] > 1 and row * item % 16:
                return f"rows of {name} are {row * item} bytes apart, and TMA needs a multiple of 16"
            if array_address(x) % 16:
                return f"{name} is not aligned to 16 bytes"
        if p.M > 1 and p.N * p.out_dtype.itemsize % 16:
            return f"rows of the result are {p.N * p.out_dtype.itemsize} bytes, and TMA needs a multiple of 16"
        return ""


def out_refusal(out: Any) -> str:
    """Why TMA can't store into the last two axes of `out=`; empty where it can, and for what is no array."""
    strides, shape = (element_strides(out), tuple(out.shape)) if hasattr(out, "dtype") else (None, ())
    if strides is None or len(shape) < 2:
        return ""
    if strides[-1] != 1 and shape[-1] > 1:
        return "out is strided along its rows"
    item = as_dtype(out.dtype).itemsize
    if any(n > 1 and (s < 0 or s * item % 16) for n, s in zip(shape[:-1], strides[:-1], strict=True)):
        return f"out has strides {strides}, and TMA needs rows at multiples of 16 bytes"
    return "out is not aligned to 16 bytes" if array_address(out) % 16 else ""


def check_apart(out: Any, inputs: Mapping[str, Any], kernel: str) -> None:
    """Raise `BadCallValue` where `out` is one of the inputs, which other blocks still read."""
    address = array_address(out)
    for name, x in inputs.items():
        if address and array_address(x) == address and math.prod(x.shape):
            what, hint = f"out= is the memory of {name}", f"{name} is read until the end; pass another array, or none"
            raise BadCallValue(kernel=kernel, what=what, hint=hint)


def check_array(x: Any, name: str, rank: int, hint: str) -> None:
    """Raise `BadCallArgument` for what is no array of real numbers with that many dimensions."""
    shape = getattr(x, "shape", None)
    if not isinstance(shape, tuple) or not hasattr(x, "dtype") or len(shape) != rank:
        what = f"{name} is a {type(x).__name__} of shape {shown(shape or ())}"
        raise BadCallArgument(kernel="matmul", what=what, hint=hint)
    if as_dtype(x.dtype).name.startswith("complex"):
        what = f"{name} is {as_dtype(x.dtype)}"
        raise BadCallArgument(kernel="matmul", what=what, hint="multiply the real and imaginary parts on their own")


def known_plan(plans: Mapping[Any, Any], key: Hashable, name: str, options: Mapping[str, Any]) -> Any:
    """The plan under `key`, or None. Raises `BadCallArgument` where one of the options can't be part of a key."""
    try:
        return plans.get(key)
    except TypeError:
        odd = next(option for option, value in options.items() if not _hashes(value))
        what = f"{odd} is a {type(options[odd]).__name__}, which can't be hashed"
        hint = "kernels are kept by their options; an instance of a dataclass can be hashed if that is frozen"
        raise BadCallArgument(kernel=name, what=what, hint=hint) from None


def _hashes(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def check_options(activation: Any, precision: Any, config: Any) -> None:
    """Raise `BadCallArgument`, `BadCallValue` for options that are not what they should be."""
    if activation is not None and not callable(activation):
        what = f"activation is a {type(activation).__name__}"
        raise BadCallArgument(kernel="matmul", what=what, hint="a function of a traced value, such as `kd.relu`")
    if precision not in (None, "highest", "tf32"):
        raise BadCallValue(kernel="matmul", what=f"precision={precision!r}", hint='None or "tf32"')
    if config is not None and not isinstance(config, MatmulConfig):
        what = f"config is a {type(config).__name__}"
        raise BadCallArgument(kernel="matmul", what=what, hint="a `MatmulConfig`, or None to have one chosen")
    if config is not None:
        check_counts(config, "matmul")
        check_tiles(config)


def check_counts(config: Any, kernel: str) -> None:
    """Raise `BadCallArgument`, `BadCallValue` where a size or count of a configuration is no positive integer, or one stage."""
    for field in fields(config):
        value, what = getattr(config, field.name), f"config.{field.name}={shown(getattr(config, field.name))}"
        if field.type == "bool" and not isinstance(value, bool):
            raise BadCallArgument(kernel=kernel, what=what, hint="True or False")
        if field.type != "int":
            continue
        if not isinstance(value, Integral):
            raise BadCallArgument(kernel=kernel, what=what, hint="a positive int")
        if value < 1:
            raise BadCallValue(kernel=kernel, what=what, hint="a positive int")
    if config.stages < 2:
        hint = "2 or more: a stage is given back one step after its product began"
        raise BadCallValue(kernel=kernel, what=f"config.stages={config.stages}", hint=hint)


def check_tiles(t: MatmulConfig) -> None:
    """Raise `BadCallValue` where the parts of a tile don't make up the tile."""
    sharers = 1 if t.ping_pong else t.consumers
    if t.tile_m % (64 * sharers):
        what = f"config.tile_m={t.tile_m} is shared by {sharers} consumers"
        raise BadCallValue(kernel="matmul", what=what, hint=f"a multiple of {64 * sharers}: wgmma has 64 rows")
    if t.tile_n % t.epilogue_n or t.epilogue_n % 8:
        what = f"config.epilogue_n={t.epilogue_n} of config.tile_n={t.tile_n}"
        raise BadCallValue(
            kernel="matmul", what=what, hint="a multiple of 8 that divides tile_n: a tile is stored in such parts"
        )


def signature(x: Any, kernel: str) -> tuple[Any, ...]:
    """What a plan depends on of an array: shape, dtype, strides, alignment. Raises `BadCallArgument` for a sparse tensor."""
    stride = getattr(x, "stride", None)
    if callable(stride):
        try:
            return x.shape, x.dtype, stride(), x.data_ptr() & 15
        except RuntimeError:
            what = f"an argument of shape {tuple(x.shape)} is a {str(x.layout).removeprefix('torch.')} tensor"
            raise BadCallArgument(kernel=kernel, what=what, hint="pass `.to_dense()`") from None
    shape = getattr(x, "shape", None)
    if not isinstance(shape, tuple):
        return (type(x),)
    return shape, str(getattr(x, "dtype", None)), getattr(x, "strides", None), array_address(x) & 15


def array_address(x: Any) -> int:
    """The address of an array on its device; 0 for a struct."""
    if hasattr(x, "data_ptr"):
        return int(x.data_ptr())
    if hasattr(x, "__array_interface__"):
        return int(x.__array_interface__["data"][0])
    return int(getattr(getattr(x, "data", None), "ptr", 0))  # CuPy's


matmul = Matmul()
