"""The options of a random call of attention: numbers, and functions of scores that NumPy and a kernel can both compute."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import kernel_dsl as kd
from tests.library import attention_reference as reference

TABLE = 64  # elements of an axis of a captured array that functions read by a remainder


def where(seen: Any, x: Any, y: Any) -> Any:
    return np.where(seen, x, y) if isinstance(seen, np.ndarray) else kd.where(seen, x, y)


def rem(x: Any, by: int) -> Any:
    """The remainder of ints from 0 on."""
    return x % by if isinstance(x, np.ndarray) else kd.rem(x, by)


def squashed_grad(x: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    return x * 0.5 - (b + 1) * 0.5


def bent(x: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    """By a derivative without a step: rounding decides the sign of a score that is nearly 0."""
    return x + x * abs(x) / (1 + abs(x)) * 0.25


def hidden(x: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    """Some scores become -inf, as masks do."""
    return where((i + j * 3) % 5 == 0 if isinstance(i, np.ndarray) else kd.rem(i + j * 3, 5) == 0, -np.inf, x)


def halved(x: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    return x * 0.5


def halved_grad(x: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    return 0.5


def by_table(table: Any) -> Callable[..., Any]:
    def mod(x: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return x + table[rem(h + b, 4), rem(j, TABLE)] * 0.5

    return mod


def times_table(table: Any) -> Callable[..., Any]:
    def mod(x: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return x * table[rem(i, TABLE), rem(j, TABLE)] + h * 0.125

    return mod


def prefix(b: Any, h: Any, i: Any, j: Any) -> Any:
    return (j < 20 + 3 * b) | (j <= i)


def nothing(b: Any, h: Any, i: Any, j: Any) -> Any:
    """Only the first head sees keys."""
    return (h == 0) & (j >= 0)


def even(b: Any, h: Any, i: Any, j: Any) -> Any:
    return rem(i + j, 2) == 0


def same_number(numbers: Any) -> Callable[..., Any]:
    """Documents by captured numbers of positions."""

    def mask(b: Any, h: Any, i: Any, j: Any) -> Any:
        return numbers[rem(b, 4), rem(i, 4 * TABLE)] == numbers[rem(b, 4), rem(j, 4 * TABLE)]

    return mask


def by_bits(bits: Any) -> Callable[..., Any]:
    def mask(b: Any, h: Any, i: Any, j: Any) -> Any:
        return bits[rem(h, 4), rem(i, TABLE), rem(j, TABLE)] != 0

    return mask


# name: (the function or its maker, the shape of the array that the maker takes, the derivative that may be given)
SCORE_MODS: dict[str, tuple[Any, tuple[int, ...] | None, Any]] = {
    "alibi": (reference.alibi, None, lambda x, *_: 1.0),
    "squashed": (reference.squashed, None, squashed_grad),
    "bent": (bent, None, None),
    "hidden": (hidden, None, None),
    "halved": (halved, None, halved_grad),
    "by_table": (by_table, (4, TABLE), None),
    "times_table": (times_table, (TABLE, TABLE), None),
}
MASK_MODS: dict[str, tuple[Any, tuple[int, ...] | None, Any]] = {
    "documents": (reference.documents, None, None),
    "by_head": (reference.by_head, None, None),
    "prefix": (prefix, None, None),
    "nothing": (nothing, None, None),
    "even": (even, None, None),
    "same_number": (same_number, (4, 4 * TABLE), None),
    "by_bits": (by_bits, (4, TABLE, TABLE), None),
}


def draw_options(c: Any, form: str) -> dict[str, Any]:
    """Options by name: a number, the name of a function, or words for an array that `Batch` makes.

    The last word of sinks and of a bias: whether some elements are -inf, for no sink and for hidden keys.
    """
    rare = c.one([0.0, 0.25, 0.25, 0.5])
    drawn: dict[str, Callable[[], Any]] = {
        "causal": lambda: c.one([True, "top_left", "bottom_right"]),
        "window": lambda: c.one([1, 5, 30, 64, 100, 2**31]),
        "softcap": lambda: c.one([1.5, 3.0, 30.0]),
        "scale": lambda: c.one([0.02, 0.3, np.float32(0.125)]),
        "sinks": lambda: (c.one(["float32", "bfloat16"]), c.chance(0.3)),
        "bias": lambda: (c.one(["float32", "bfloat16", "float16"]), c.below(16), c.below(3), c.one(["plain", "shifted", "turned"]), c.chance(0.3)),
        "score_mod": lambda: c.one([*SCORE_MODS]),
        "mask_mod": lambda: c.one([*MASK_MODS]),
    }  # fmt: skip
    if "ragged" in form:
        del drawn["bias"]
    found = {name: draw() for name, draw in drawn.items() if c.chance(rare)}
    if c.chance(0.5) and "score_mod" in found:
        found["given derivative"] = True
    if "bias" in found and "score_mod" in found:  # which need not be defined at -inf
        found["bias"] = (*found["bias"][:-1], False)
    return found


@dataclass
class Functions:
    """The functions of a call, closed over arrays of a batch."""

    score_mod: Any = None
    mask_mod: Any = None
    score_mod_grad: Any = None

    @staticmethod
    def of(options: dict[str, Any], rng: Any) -> Functions:
        made = Functions()
        for name, known in (("score_mod", SCORE_MODS), ("mask_mod", MASK_MODS)):
            if name not in options:
                continue
            function, shape, grad = known[options[name]]
            if shape is not None:
                numbers = rng.standard_normal(shape).astype(np.float32)
                if name == "mask_mod":
                    numbers = np.sort(rng.integers(0, 4, shape)).astype(np.int32)
                    numbers = rng.integers(0, 2, shape).astype(np.int8) if len(shape) == 3 else numbers
                function = function(numbers)
            setattr(made, name, function)
            if name == "score_mod" and "given derivative" in options:
                made.score_mod_grad = grad
        return made

    def given(self) -> dict[str, Any]:
        """The functions that forward and backward take."""
        return {name: f for name in ("score_mod", "mask_mod") if (f := getattr(self, name)) is not None}

    def derivative(self) -> dict[str, Any]:
        return {} if self.score_mod_grad is None else {"score_mod_grad": self.score_mod_grad}

    def of_batch(self, number: int) -> dict[str, Any]:
        """The functions for the reference, whose only sequence is that of this number."""

        def shifted(function: Any) -> Any:
            return lambda *args: function(*args[:-4], args[-4] + number, *args[-3:])

        return {name: shifted(f) for name, f in self.given().items()}
