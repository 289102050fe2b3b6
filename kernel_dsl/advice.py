"""Advice on replacing Python that can't work on traced values, from the user's line."""

from __future__ import annotations

import linecache
import re

from .boundary import OPERATIONS
from .source import here

# Python's function, and its replacement in a kernel
_FUNCTIONS = {
    "max": "`kd.maximum(x, y)` gives the larger of two, `kd.max(x)` the largest element",
    "min": "`kd.minimum(x, y)` gives the smaller of two, `kd.min(x)` the smallest element",
    "sorted": "use `kd.sort(x)`",
    "any": "use `kd.any(x)`",
    "all": "use `kd.all(x)`",
    "sum": "use `kd.sum(x)`",
    "abs": "use `kd.abs(x)`",
    "pow": "use `kd.power(x, y)`, and `kd.mod` for the third argument",
    "range": "loop with `kd.fori_loop(0, n, body, init)` or `@kd.loop(0, n)`, whose bounds may be traced",
    "enumerate": "loop with `kd.fori_loop` or `@kd.loop`, whose index is traced",
    "filter": "use `kd.where(condition, x, y)`",
    "list": "index it with static integers, or loop with `kd.fori_loop`",
    "tuple": "index it with static integers, or loop with `kd.fori_loop`",
    "print": 'use `kd.debug_print("{}", x)`',
}
_STATEMENTS = {
    "while": "use `kd.while_loop(condition, body, init)`",
    "assert": "use `kd.debug_check(condition, message)`, or assert on shapes and dtypes, which are known",
    "match": "use `kd.switch(index, branches)`, or `kd.where`",
    "case": "use `kd.switch(index, branches)`, or `kd.where`",
}
_CALL = r"(?:(\w+)\.)?(\w+)\("


def instead(otherwise: str) -> str:
    """Words for an error's help: advice on the construct at the user's line if the table has it, else `otherwise`."""
    loc = here()
    line = linecache.getline(loc.file, loc.line)
    statement = re.match(r"\s*(\w+)\b", line)
    text = line.encode()[loc.column : loc.end_column].decode(errors="ignore") if loc.column >= 0 else ""
    call = re.match(_CALL, text)
    if call is not None:
        found = _of_function(call[1], call[2])
        if found:
            return found
    if statement is not None and statement[1] in _STATEMENTS:
        return _STATEMENTS[statement[1]]
    if re.search(r"\bin\b", text) and call is None:
        return "use `kd.any(x == value)`"
    return otherwise


def subscript(otherwise: str) -> str:
    """As `instead`, for a value that Python needs as an integer.

    For an index of a list or tuple: how to choose from it.
    """
    loc = here()
    line = linecache.getline(loc.file, loc.line)
    text = line.encode()[loc.column : loc.end_column].decode(errors="ignore") if loc.column >= 0 else ""
    if text.endswith("]") and re.match(_CALL, text) is None:
        return "choose with `kd.switch(index, functions)` or `kd.where`; a Ref takes a traced index: `ref[i]`"
    return instead(otherwise)


def _of_function(module: str | None, name: str) -> str:
    if module is None:
        return _FUNCTIONS.get(name, "")
    if module in ("math", "np", "numpy", "cmath", "jnp", "torch", "operator") and name in OPERATIONS:
        return f"use `kd.{name}`"
    return ""
