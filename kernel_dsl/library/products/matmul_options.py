"""The arguments of a matmul call beside a and b."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from ..refusals import shape_of
from .matmul_config import MatmulConfig

Item = tuple[str, Any]  # an operand of a step, with the name of its argument


class MatmulOptions(NamedTuple):
    """The arguments of a call beside a and b."""

    out_dtype: Any = None
    bias: Any = None
    c: Any = None
    activation: Callable[[Any], Any] | None = None
    precision: str | None = None
    scale: Any = None
    a_scale: Any = None
    b_scale: Any = None
    epilogue: Callable[..., Any] | None = None
    operands: Any = ()
    gated: Any = None
    dropout: Any = None
    residual: Any = None
    out_scale: Any = None
    absmax: bool = False
    config: MatmulConfig | None = None

    def rights(self, b: Any) -> list[Any]:
        """The right sides: b, or the gate and the gated matrix."""
        return [b] if self.gated is None else list(halves(b))

    def items(self) -> tuple[list[list[Item]], list[Item]]:
        """(the operands of each product's steps, the operands of the result's steps), in the order of kernels'
        arguments.
        """
        own = [("a_scale", self.a_scale), ("b_scale", self.b_scale), ("scale", self.scale), ("bias", self.bias)]
        own = [(name, x) for name, x in own if x is not None]
        if self.gated is None:
            first = [own]
        else:
            split = {"b_scale", "bias"}  # both products share the others
            first = [[(n, halves(x)[i] if n in split else x) for n, x in own] for i in range(2)]
        rest = [("c", self.c)] if self.c is not None else []
        rest += [("operands", x) for x in self.listed]
        if self.dropout is not None:
            rate, seed = float(self.dropout[0]), int(self.dropout[1])
            words = (seed & 0xFFFFFFFF, seed >> 32)
            grown = 1 / (1 - rate)  # a float, because float64 products take it as float64
            rest += [("dropout", x) for x in (np.float32(rate), grown, *(np.uint32(word) for word in words))]
        rest += [(n, x) for n, x in (("residual", self.residual), ("out_scale", self.out_scale)) if x is not None]
        return first, rest

    def extra(self) -> list[Any]:
        """The operands of steps, in the order of kernels' arguments."""
        first, rest = self.items()
        return [x for items in (*first, rest) for _, x in items]

    def like(self, b: Any) -> tuple[Any, ...]:
        """The key of a call: calls with equal keys launch the same kernels for arrays of this kind."""
        pair = type(b) in (tuple, list) and b
        packed = (getattr(b[0], "form", None), getattr(b[-1], "form", None)) if pair else getattr(b, "form", None)
        return (
            self.out_dtype, self.activation, self.precision, self.epilogue, self.gated, self.absmax, self.config,
            packed, type(self.c), type(self.scale), type(self.a_scale), type(self.residual),
            type(self.out_scale), form_of(b), form_of(self.operands), None if self.bias is None else form_of(self.bias),
            None if self.b_scale is None else form_of(self.b_scale),
        )  # fmt: skip

    @property
    def listed(self) -> tuple[Any, ...]:
        """The operands of the epilogue."""
        return tuple(self.operands) if isinstance(self.operands, (tuple, list)) else (self.operands,)


def form_of(x: Any) -> Any:
    """The type of an argument, and the number of its parts if it is a pair, without the properties of arrays."""
    kind = type(x)
    return (kind, len(cast("Sequence[Any]", x))) if kind is tuple or kind is list else kind


def halves(x: Any) -> tuple[Any, Any]:
    """(the part for the gate, the part for the gated product) of an argument: a pair, alternating columns, or one for
    both.
    """
    if isinstance(x, (tuple, list)):
        pair: Sequence[Any] = x
        return pair[0], pair[1]
    if not shape_of(x) or x.shape[-1] == 1 or not hasattr(x, "__getitem__"):
        return x, x  # the last is no array: it is refused later, under its name
    return x[..., 0::2], x[..., 1::2]


def mixed_forms(b_scale: Any) -> tuple[str, str]:
    """(the defect, the hint) for a pair of scales by blocks of K with different forms."""
    shapes = " and ".join(str(shape_of(x)) for x in halves(b_scale))
    return f"b_scale is a pair of {shapes}", "give scales by blocks of K, in one form for both matrices, or for none"
