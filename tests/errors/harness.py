"""Runs one case of `tests/errors/cases`: a script whose last statement is refused."""

from __future__ import annotations

import linecache
import traceback
from pathlib import Path
from typing import Any

CASES = Path(__file__).with_name("cases")
BUILTINS = (
    OverflowError,
    IndexError,
    TypeError,
    ValueError,
    MemoryError,
    RuntimeError,
    AttributeError,
)


def run(path: Path) -> tuple[BaseException | None, dict[str, Any]]:
    """What the script raises, and the names that it had made by then."""
    linecache.checkcache(str(path))
    names: dict[str, Any] = {"__name__": f"case_{path.stem}", "__file__": str(path)}
    try:
        exec(compile(path.read_text(), str(path), "exec", dont_inherit=True), names)
    except Exception as error:
        return error, names
    return None, names


def words(error: BaseException, path: Path) -> str:
    """The error as its golden file has it: class, the builtin it derives from, message; paths shortened."""
    builtin = next((b.__name__ for b in BUILTINS if isinstance(error, b)), "none")
    text = str(error).replace(str(path.parent) + "/", "")
    return f"{type(error).__name__}({builtin})\n{text}\n"


def last_frame(error: BaseException) -> str:
    """The file of the innermost frame of the traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    return frames[-1].filename if frames else ""
