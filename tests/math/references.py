"""References of higher precision, and the arguments at which functions are compared with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from .host import host_function, libm

Reference = Callable[..., np.ndarray]


def _logistic(x: np.ndarray) -> np.ndarray:
    e = np.exp(-np.abs(x))
    return np.where(x < 0, e, 1) / (1 + e)


def _rsqrt(x: np.ndarray) -> np.ndarray:
    return 1 / np.sqrt(x)


def _power(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    # The C library's 80-bit power of an infinity is wrong for exponents from 2^63 on.
    return np.where(np.isinf(x), np.power(x.astype(np.float64), y.astype(np.float64)), np.power(x, y))


def _erfinv(x: np.ndarray) -> np.ndarray:
    """Newton's steps from the float64 function under test, on what the C library says of erf and
    erfc there.

    A wrong start is not hidden: the steps lead to the root, whatever they start from.
    """
    wide = x.dtype == np.longdouble
    t = np.abs(x)
    y = host_function("erfinv.f64")(np.minimum(t, 1 - 2.0**-53)).astype(x.dtype)
    for _ in range(2):
        near = libm("erf", wide=wide)(y) - t
        far = (1 - t) - libm("erfc", wide=wide)(y)
        y = y - np.where(t < 0.5, near, far) * np.exp(y * y) * (np.sqrt(np.arccos(x.dtype.type(-1))) / 2)
    y = np.where(t < 1, y, np.where(t == 1, np.inf, np.nan))
    return np.copysign(y, x)


_NUMPY: Mapping[str, Reference] = {
    "acos": np.arccos,
    "acosh": np.arccosh,
    "asin": np.arcsin,
    "asinh": np.arcsinh,
    "atan": np.arctan,
    "atan2": np.arctan2,
    "atanh": np.arctanh,
    "cbrt": np.cbrt,
    "cos": np.cos,
    "cosh": np.cosh,
    "erfinv": _erfinv,
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "fmod": np.fmod,
    "hypot": np.hypot,
    "log": np.log,
    "log10": np.log10,
    "log1p": np.log1p,
    "log2": np.log2,
    "logistic": _logistic,
    "pow": _power,
    "remainder": np.remainder,
    "rsqrt": _rsqrt,
    "sin": np.sin,
    "sinh": np.sinh,
    "tan": np.tan,
    "tanh": np.tanh,
}
_LIBM = {"lgamma": "lgamma", "tgamma": "tgamma", "erf": "erf", "erfc": "erfc", "exp10": "exp10"}


def reference(name: str, dtype: str) -> Reference:
    """The function in the next wider format: float64 for "f32", 80 bits for "f64"."""
    wide = np.longdouble if dtype == "f64" else np.float64
    inner = _NUMPY.get(name) or libm(_LIBM[name], wide=dtype == "f64")

    def apply(*arrays: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            return inner(*(np.asarray(a).astype(wide) for a in arrays))

    return apply


def specials(dtype: str) -> list[float]:
    """Zeros, infinities, NaN, limits of the format, small integers and halves, each with its
    neighbours.
    """
    kind = np.float32 if dtype == "f32" else np.float64
    info = np.finfo(kind)
    points = [0.0, info.smallest_subnormal, info.tiny, info.max, info.eps, np.inf]
    points += [0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 10.0, 100.0, np.pi, np.pi / 2, np.e, np.log(2)]
    points += [2.0**k for k in (-30, -12, 11, 23, 24, 31, 52, 53, 63, 100)]
    base = np.array(points, kind)
    with np.errstate(all="ignore"):
        near = np.concatenate([base, np.nextafter(base, kind(0)), np.nextafter(base, kind(np.inf))])
    return [*np.unique(np.concatenate([near, -near])).tolist(), -0.0, np.nan]


def samples(dtype: str, count: int, seed: int = 0) -> np.ndarray:
    """Specials, random bit patterns (all exponents alike, subnormals too) and values within reach
    of exp.
    """
    kind, bits = (np.float32, np.uint32) if dtype == "f32" else (np.float64, np.uint64)
    rng = np.random.default_rng(seed)
    patterns = rng.integers(0, np.iinfo(bits).max, count // 3, bits, endpoint=True).view(kind)
    near = rng.uniform(-3, 3, count // 3)
    wide = rng.normal(0, 1, count // 3) * 10.0 ** rng.uniform(-4, 3, count // 3)
    return np.concatenate([np.array(specials(dtype), kind), patterns, near.astype(kind), wide.astype(kind)])


def pairs(name: str, dtype: str, count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Arguments of a function of two: all pairs of specials, unrelated samples, and operands of
    like size.
    """
    kind = np.float32 if dtype == "f32" else np.float64
    special = np.array(specials(dtype), kind)
    left, right = (grid.ravel() for grid in np.meshgrid(special, special))
    rng = np.random.default_rng(seed)
    x = samples(dtype, count // 2, seed)
    with np.errstate(all="ignore"):
        like = (x * rng.uniform(0.5, 2, x.size)).astype(kind)
        if name == "pow":  # exponents that lead to results of every size
            reach = np.log(np.finfo(kind).max) * rng.uniform(-1.1, 1.1, x.size)
            like = (reach / np.log(np.abs(x.astype(np.longdouble)))).astype(kind)
    return np.concatenate([left, rng.permutation(x), x]), np.concatenate([right, rng.permutation(x), like])
