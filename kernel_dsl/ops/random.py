"""Random numbers by counters: an element's numbers depend on the seed, the offset and its index, and on nothing else."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import dtypes as dt
from ..arguments import refuse, static_int
from ..diagnostics import shown
from ..dtypes import DType, as_dtype
from ..errors import BadArgument, BadArgumentType, UnsupportedDType
from ..ir import ArrayType, Op, Value, attr, operand
from ..layout import SCALAR
from ..memory import as_shape
from ..promote import computing
from ..trace import LayoutVar, emit
from ..values import Array
from .arith import right_shift
from .bits import nextafter
from .broadcast import broadcast_to
from .cast import as_value, astype, bitcast_convert_type, constant, rounded
from .compare import less, minimum
from .math import cos, log, sqrt

__all__: list[str] = []  # users find these functions in `kd.random`

NEIGHBOURS = 4  # elements that get their words from one counter


class Philox(Op, name="philox"):
    """32-bit words of Philox-4x32-10: element i has `words` words from number i * `words` on, a result each.

    Word number w is word w % 4 of counter `offset` + w // 4 (64 bits; the upper words are 0), with `seed` as the key. A
    lane runs the ten rounds once for all words of a counter that it holds. PTX `mul.wide`, `xor`.
    """

    seed: Value = operand()
    offset: Value = operand()
    shape: tuple[int, ...] = attr()
    words: int = attr()
    layout: Any = attr()

    def infer(self) -> tuple[Any, ...]:
        return (ArrayType(self.shape, dt.uint32, self.layout),) * self.words


def _word64(x: Any, op: str, name: str) -> Array:
    """A rank-0 uint64 of an int or a rank-0 integer; negative ones as two's complement."""
    hint = "an int or a rank-0 integer of at most 64 bits"
    if isinstance(x, Array):
        if x.ndim or not x.dtype.is_integer:
            raise BadArgumentType(op=op, what=f"{name}={shown(x)}", hint=hint)
        return astype(astype(x, dt.int64) if x.dtype.is_signed else x, dt.uint64)
    number = static_int(x)
    if number is None:
        refuse(x, op, name, hint)
    if not -(2**63) <= number < 2**64:
        raise BadArgument(op=op, what=f"{name}={shown(number)}", hint=hint)
    return constant(number % 2**64, dt.uint64)


def _words(seed: Any, shape: Any, offset: Any, count: int, op: str) -> tuple[Array, ...]:
    to = as_shape(shape, op)
    layout: Any = LayoutVar(to, NEIGHBOURS) if to else SCALAR
    made: Any = emit(Philox(_word64(seed, op, "seed"), _word64(offset, op, "offset"), to, count, layout)).results
    return made


def bits(seed: Any, shape: Any, offset: Any = 0) -> Array:
    """Random uint32: element i, counted in row-major order, is word i % 4 of Philox-4x32-10 at counter `offset` + i // 4.

    `seed`: an int or a rank-0 integer of up to 64 bits, whose low word is the key's first; `offset`: the same, 64 bits
    that wrap. The upper half of the counter is 0. Every layout, grid and device gives the same numbers. Give each block
    its own offset, a multiple of a quarter of its elements. Raises `BadArgument`, `BadArgumentType`.

    >>> run(lambda: kd.random.bits(0, (4,)))
    [1713891541 3781805453 3159862348 2600524760]
    """
    return _words(seed, shape, offset, 1, "random.bits")[0]


def _float(dtype: Any, op: str) -> DType:
    out = as_dtype(dtype)
    if not out.is_float:
        raise UnsupportedDType(op=op, dtype=out, hint="it gives floats; `kd.random.bits` gives integers")
    return out


def _bound(x: Any, op: str, name: str) -> Any:
    """A finite number as a float, or a rank-0 value unchanged."""
    hint = "a finite number, or a rank-0 value"
    if isinstance(x, Array):
        if x.ndim:
            raise BadArgumentType(op=op, what=f"{name}={shown(x)}", hint=hint)
        return x
    if isinstance(x, (bool, np.bool_)) or not isinstance(x, (int, float, np.integer, np.floating)):
        refuse(x, op, name, hint)
    try:
        number = float(x)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise BadArgument(op=op, what=f"{name}={shown(x)}", hint=hint)
    return number


def uniform(
    seed: Any, shape: Any, dtype: Any = dt.float32, minval: Any = 0.0, maxval: Any = 1.0, offset: Any = 0
) -> Array:
    """Random floats from `minval` up to, and without, `maxval`: (bits >> 8) / 2**24, scaled. `bits` of the same seed and offset.

    Narrow floats are rounded from float32; a number that would round to `maxval` becomes the number below it. `minval`
    and `maxval` are numbers or rank-0 values. Raises `BadArgument` if `minval` is over `maxval`, `UnsupportedDType` for
    integers.

    >>> run(lambda: kd.random.uniform(0, (2,)))
    [0.39904642 0.88052016]
    """
    op = "random.uniform"
    out, low, high = _float(dtype, op), _bound(minval, op, "minval"), _bound(maxval, op, "maxval")
    static = isinstance(low, float) and isinstance(high, float)
    if static and low > high:
        raise BadArgument(op=op, what=f"minval={low} over maxval={high}", hint="minval must be smaller than maxval")
    wide = computing(out)
    value: Any = _fraction(_words(seed, shape, offset, 1, op)[0], wide)
    plain = static and (low, high) == (0.0, 1.0)
    if not plain:
        first = as_value(low, op, wide)
        value = value * (as_value(high, op, wide) - first) + first
    if plain and out == wide:
        return value
    ends = [as_value(x, op, wide) for x in (high, low)]
    return minimum(rounded(value, out), nextafter(*(rounded(x, out) for x in ends)))


def _fraction(word: Array, dtype: DType) -> Array:
    """(word >> 8) / 2**24, exact also in float32."""
    steps: Any = astype(right_shift(word, 8), dtype)
    return steps * 2.0**-24


def normal(seed: Any, shape: Any, dtype: Any = dt.float32, offset: Any = 0) -> Array:
    """Random floats of mean 0 and variance 1, by Box and Muller of words 2 * i and 2 * i + 1 for element i.

    With u = (word >> 8) / 2**24 they are sqrt(-2 * log(1 - u[0])) * cos(2 * pi * u[1]), at most 5.8. An element takes
    two words, so offsets of blocks differ by half of their elements. Raises `UnsupportedDType` for integers.

    >>> run(lambda: kd.random.normal(0, (2,)))
    [ 0.73792565 -1.2860193 ]
    """
    op = "random.normal"
    out = _float(dtype, op)
    wide = computing(out)
    one, two = _words(seed, shape, offset, 2, op)
    left: Any = 1.0 - _fraction(one, wide)  # above 0 and up to 1, exact: its logarithm is finite
    # the angle from -pi to pi: floats are finer there than up to 2 * pi
    turn: Any = astype(right_shift(bitcast_convert_type(two, dt.int32), 8), wide)
    radius: Any = sqrt(log(left) * -2.0)
    return rounded(radius * cos(turn * (math.pi * 2.0**-23)), out)


def bernoulli(seed: Any, p: Any, shape: Any, offset: Any = 0) -> Array:
    """Random bools that are true with probability `p`: `uniform(seed, shape, offset=offset) < p`.

    `p` is a number from 0 to 1, or a value that broadcasts to `shape`. Raises `BadArgument` for other numbers.

    >>> run(lambda: kd.random.bernoulli(0, 0.5, (4,)))
    [ True False False False]
    """
    op = "random.bernoulli"
    if not isinstance(p, (Array, np.ndarray)):
        number = _bound(p, op, "p")
        if not 0 <= number <= 1:
            raise BadArgument(op=op, what=f"p={number}", hint="a probability, from 0 to 1")
        p = number
    value = as_value(p, op)
    if not value.dtype.is_float:
        raise UnsupportedDType(op=op, dtype=value.dtype, hint="a probability is a float")
    drawn = _fraction(_words(seed, shape, offset, 1, op)[0], dt.float32)
    return less(drawn, broadcast_to(value, drawn.shape) if value.ndim else value)
