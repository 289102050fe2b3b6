"""Writes the operations' names into `kernel_dsl/__init__.py`, as editors want them: `python -m tests.architecture.exports`."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from typing import Any

import kernel_dsl as kd
from kernel_dsl import ops
from tests.conftest import ROOT

FILE = ROOT / "kernel_dsl" / "__init__.py"


def families() -> dict[str, list[str]]:
    """The public names of each file of operations."""
    return {f.__name__.rpartition(".")[2]: sorted(f.__all__) for f in ops.FAMILIES if getattr(f, "__all__", [])}


def _order(name: str) -> tuple[Any, ...]:
    """Constants, classes, functions; numbers by their values. It is ruff's order, which else writes a name a line."""
    parts = re.split(r"(\d+)", name)
    return not name.isupper(), not name[0].isupper(), [int(x) if n % 2 else x for n, x in enumerate(parts)]


def written(text: str) -> str:
    """The file's text with the imports of operations and `__all__` made anew; the rest stays, as do classes that annotate."""
    text = re.sub(r"(?m)^    from \.ops\.\w+ import (\([^)]*\)|(?!.* as ).*)\n", "", text)
    imports = "".join(f"    from .ops.{family} import {', '.join(names)}\n" for family, names in families().items())
    text = text.replace("    from .refs import", f"{imports}    from .refs import", 1)
    others = set(kd.__all__) - ops.NAMES
    names = sorted(others | ops.NAMES, key=_order)
    quoted = ", ".join(f'"{name}"' for name in names)
    listed = textwrap.fill(quoted, 120, initial_indent="    ", subsequent_indent="    ", break_long_words=False)
    made = f"__all__ = [\n{listed}\n]  # fmt: skip\n"  # a name a line would be half of the file
    return re.sub(r"(?s)__all__ = \[.*?\](  # fmt: skip)?\n", lambda _: made, text, count=1)


if __name__ == "__main__":
    FILE.write_text(written(FILE.read_text()))
    for command in (["check", "--fix", "-q"], ["format", "-q"]):
        subprocess.run([sys.executable, "-m", "ruff", *command, str(FILE)], check=True)
