"""Scripts that measure: `python -m benchmarks.NAME --help` says what of. One that lacks a package says so in one line."""

from __future__ import annotations

import sys
from types import TracebackType

_OURS = ("benchmarks", "examples", "kernel_dsl", "tests")


def _told(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    lacking = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if lacking and lacking not in _OURS:
        print(f"this script needs the package {lacking}, which is not installed here", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


if sys.argv[0] == "-m":  # Python is about to run one of the scripts
    sys.excepthook = _told
