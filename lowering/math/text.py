"""The writer of mathematical functions: `V` and its operators, and the operations on floats.

Each operator writes one instruction, so what is written in Python is what the GPU executes: there
is no fast-math flag, and a fused multiply-add is always an explicit `llvm.fma` (`fma.rn` in PTX).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import TypeVar

from ..debug_lines import DebugLines
from ..llvm_types import suffix
from ..value import V
from ..writer import Writer

Number = int | float
T = TypeVar("T")


class FunctionWriter(Writer):
    """Collects the body of one function over `dtype` ("float" or "double") and the helpers it
    calls.
    """

    def __init__(self, dtype: str) -> None:
        super().__init__(DebugLines(), block="entry")
        self.dtype = dtype
        self.is32: bool = dtype == "float"
        self.int = "i32" if self.is32 else "i64"
        self.suffix: str = suffix(dtype)
        self.needs: list[str] = []

    def value(self, x: str | float, type: str | None = None) -> V:
        """`x` as a value of `type` (default: the function's own dtype)."""
        return super().value(x, type or self.dtype)

    def float_literal(self, value: float, type: str) -> str:
        """Raises ValueError if a float32 constant does not fit exactly: a silently rounded
        coefficient is a wrong one.
        """
        if type == "float" and value == value and struct.unpack("f", struct.pack("f", value))[0] != value:
            raise ValueError(f"{value!r} is not a float32")
        return super().float_literal(value, type)

    def pick(self, pair: tuple[T, T]) -> T:
        """The item of (for float32, for float64) that this function's dtype needs."""
        return pair[0] if self.is32 else pair[1]

    def intrinsic(self, name: str, *args: V | Number, type: str | None = None) -> V:
        """`llvm.<name>` on operands of one type, which is the result's too."""
        type = type or next((a.type for a in args if isinstance(a, V)), self.dtype)
        return self.call(type, f"llvm.{name}.{suffix(type)}", *(self.value(a, type) for a in args))

    def fma(self, a: V | Number, b: V | Number, c: V | Number) -> V:
        return self.intrinsic("fma", a, b, c)

    def sqrt(self, x: V) -> V:
        return self.intrinsic("sqrt", x)

    def abs(self, x: V) -> V:
        return self.intrinsic("fabs", x)

    def copysign(self, magnitude: V | Number, sign: V) -> V:
        return self.intrinsic("copysign", magnitude, sign, type=sign.type)

    def clamp(self, x: V, low: float, high: float) -> V:
        """`x` held within [low, high]; a NaN stays one (`max.NaN`, `min.NaN`)."""
        return self.intrinsic("minimum", self.intrinsic("maximum", x, low), high)

    def bits(self, x: V) -> V:
        """The bit pattern of a float, as an int of its size."""
        return x.bitcast("i32" if x.type == "float" else "i64")

    def from_bits(self, x: V) -> V:
        """The float with this bit pattern."""
        return x.bitcast("float" if x.type == "i32" else "double")

    def polynomial(self, x: V, coefficients: Sequence[float]) -> V:
        """Horner's rule with fused steps; `coefficients` are from the constant term up."""
        result = self.value(coefficients[-1])
        for coefficient in reversed(coefficients[:-1]):
            result = self.fma(result, x, coefficient)
        return result

    def function(self, key: str, *args: V | Number, type: str | None = None) -> V:
        """A call of another registered function, by key without the dtype suffix, such as "exp"."""
        self.needs.append(f"{key}.{self.suffix}")
        return self.call(type or self.dtype, f"kd_{key}_{self.suffix}", *(self.value(a) for a in args))

    def rarely(self, condition: V, otherwise: V, then: Callable[[], V]) -> V:
        """`then()` behind a branch if `condition` holds, else `otherwise`: for slow paths."""
        number = self.name().removeprefix("%v")
        before = self.block
        self.branch(condition, f"slow{number}", f"done{number}")
        self.begin(f"slow{number}")
        result = then()
        after = self.block
        self.jump(f"done{number}")
        self.begin(f"done{number}")
        return self.phi(otherwise.type, [(otherwise, before), (result, after)])

    def repeat(self, initial: list[V], step: Callable[[list[V]], tuple[V, list[V]]]) -> list[V]:
        """A loop: `step` maps the carried values to (whether to continue, the next values). It runs at least once."""
        label = f"loop{self.name().removeprefix('%v')}"
        before = self.block
        self.jump(label)
        self.begin(label)
        where = len(self.lines)
        carried = [self.value(f"%{label}_{i}", v.type) for i, v in enumerate(initial)]
        again, after = step(carried)
        self.lines[where:where] = [
            f"  {c} = phi {c.type} [ {i}, %{before} ], [ {a}, %{self.block} ]"
            for c, i, a in zip(carried, initial, after, strict=True)
        ]
        self.branch(again, label, f"{label}_done")
        self.begin(f"{label}_done")
        return after
