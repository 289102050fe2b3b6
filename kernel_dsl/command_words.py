"""Words of the command line: errors for unknown commands, and short names of dtypes."""

from __future__ import annotations

from . import dtypes

SHORT = {
    **{f"f{n}": f"float{n}" for n in (16, 32, 64)},
    **{f"i{n}": f"int{n}" for n in (8, 16, 32, 64)},
    **{f"u{n}": f"uint{n}" for n in (8, 16, 32, 64)},
    "bf16": "bfloat16",
    "e4m3": "float8_e4m3fn",
    "e5m2": "float8_e5m2",
}


class CommandError(Exception):
    """A command line with an unknown or impossible argument."""


def dtype_named(name: str, text: str) -> dtypes.DType:
    """The dtype of a short or full name, which is a part of an argument `text`. Raises `CommandError`."""
    full = SHORT.get(name, name)
    if full not in dtypes.BY_NAME:
        known = ", ".join([*SHORT, "bool"])
        raise CommandError(f"{text}: {name!r} is not a dtype: use one of {known}, or a full name")
    return dtypes.BY_NAME[full]
