"""`python -m kernel_dsl check`: checks an image in a file, with arguments as text, and prints the report."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from kernel_dsl.diagnostics import Error
from kernel_dsl.dtypes import BY_NAME, DType

from ..errors import ArgumentValueError
from .launches import Call
from .report import Report
from .run import check_calls
from .schedules import DEFAULT

_ARRAY = re.compile(r"(\w+)\[([\d,\s]*)\]")
_FAMILIES = {"f": "float", "i": "int", "s": "int", "u": "uint", "b": "uint"}
_SHORT = {f"{letter}{n}": f"{family}{n}" for letter, family in _FAMILIES.items() for n in (8, 16, 32, 64)} | {
    "bf16": "bfloat16",
    "e4m3": "float8_e4m3fn",
    "e5m2": "float8_e5m2",
    "pred": "bool",
}
FORMS = ("json", "sarif", "html")
_LARGEST = 1 << 33  # bytes of an array
HELP = "f16[128,192] for an array of seeded normal data, u32:128 or f32:0.5 for a number, bytes:00ff for a structure"


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("file", metavar="FILE", help="PTX, or a cubin or fat binary that holds PTX")
    parser.add_argument("--entry", help="the kernel's name; by default the only one")
    parser.add_argument("--arg", action="append", default=[], metavar="ARG", help=HELP)
    parser.add_argument("--grid", type=_extents, default=(1, 1, 1), help="blocks, such as 2,2; by default 1")
    parser.add_argument("--block", type=_extents, help="threads of a block; by default what the entry requires, or 128")
    parser.add_argument("--cluster", type=_extents, help="blocks of a cluster")
    parser.add_argument("--smem", type=int, default=0, help="bytes of dynamic SMEM")
    parser.add_argument("--target", help="the device, such as sm_80; by default the image's")
    parser.add_argument("--schedules", default=",".join(DEFAULT), help="such as eager,late,random:8")
    parser.add_argument("--ignore", action="append", default=[], metavar="KIND", help="a kind of hazard to leave out")
    parser.add_argument("--step-budget", type=_count(1), help="instructions after which a run ends")
    parser.add_argument("--seed", type=_count(0), default=0, help="of the arrays' data")
    for form in FORMS:
        what = f"the report as {form.upper()}: on standard output, or in a file"
        parser.add_argument(f"--{form}", nargs="?", const="-", metavar="OUT", help=what)


def run(options: argparse.Namespace) -> int:
    """Check and print.

    Returns the exit status: 0 without hazards, 1 with some, 2 for an image that can't be checked.
    """
    try:
        report = _checked(options)
        printed = [_written(report, form, getattr(options, form)) for form in FORMS]
    except Error as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    if not any(printed):
        print(report)
    return 1 if report.hazards else 0


def _checked(options: argparse.Namespace) -> Report:
    rng = np.random.default_rng(options.seed)
    args = [argument(text, rng) for text in options.arg]
    block = options.block or _own_block(options) or (128,)
    call = Call(
        Path(options.file), args, options.grid, block, options.cluster, options.smem, options.entry, options.target
    )
    kinds = [kind for text in options.ignore for kind in text.split(",")]
    return check_calls([call], options.schedules, kinds, options.step_budget)


def _written(report: Report, form: str, out: str | None) -> bool:
    """Write one form of the report to standard output or a file. Returns whether it was standard output."""
    if out is None:
        return False
    text = getattr(report, f"to_{form}")(None if out == "-" else out)
    if out == "-":
        print(text.rstrip("\n"))
    return out == "-"


def _own_block(options: argparse.Namespace) -> tuple[int, ...] | None:
    """The block that the entry requires."""
    from ..interpreter import parse
    from .images import as_image

    functions = parse(as_image(Path(options.file), options.entry, options.target).ptx).functions.values()
    entries = [f for f in functions if f.entry and options.entry in (None, f.name)]
    return entries[0].directives.get("reqntid") if len(entries) == 1 else None


def _count(least: int) -> Callable[[str], int]:
    def parsed(text: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) >= least):
            raise argparse.ArgumentTypeError(f"{text!r} is not an int of {least} or more")
        return int(text)

    return parsed


def _extents(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(x) for x in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither an int nor ints with commas between") from None


def argument(text: str, rng: np.random.Generator) -> Any:
    """An argument from its text: `f16[128,192]`, `u32:128`, `f32:0.5`, `bytes:00ff`, `7`, `2.5`, `null`.

    Raises ArgumentValueError.
    """
    hint = f"{text!r} is no argument: write {HELP}"
    found = _ARRAY.fullmatch(text)
    if found:
        shape = tuple(int(n) for n in found[2].split(",") if n.strip())
        return _array(_dtype(found[1], hint), shape, rng, text)
    kind, colon, value = text.partition(":")
    try:
        if text == "null":
            return None
        if kind == "bytes" and colon:
            return bytes.fromhex(value)
        if not colon:
            return int(text, 0) if re.fullmatch(r"[-+]?(0[xX][\da-fA-F]+|\d+)", text) else float(text)
        dtype = _dtype(kind, hint)
        number = int(value, 0) if dtype.is_integer else float(value)
        return np.array(number, dtype.numpy)[()]
    except (ValueError, OverflowError):
        raise ArgumentValueError(hint) from None


def _dtype(name: str, hint: str) -> DType:
    found = BY_NAME.get(_SHORT.get(name, name))
    if found is None:
        raise ArgumentValueError(hint)
    return found


def _array(dtype: DType, shape: tuple[int, ...], rng: np.random.Generator, text: str) -> Any:
    """Normal data; for integers, rounded, with a deviation of 16."""
    if np.prod(shape, dtype=float) * max(dtype.itemsize, 4) > _LARGEST:  # the data is made in float32
        raise ArgumentValueError(f"{text!r} is over {_LARGEST} bytes, or {_LARGEST // 4} elements")
    try:
        data = rng.standard_normal(shape, np.float32)
    except (ValueError, MemoryError) as error:
        raise ArgumentValueError(f"{text!r} is no array that NumPy makes here: {error}") from None
    if dtype.name == "bool":
        return data > 0
    if dtype.is_integer:
        return np.rint(np.abs(data) * 16 if dtype.name[0] == "u" else data * 16).astype(dtype.numpy)
    return data.astype(dtype.numpy)
