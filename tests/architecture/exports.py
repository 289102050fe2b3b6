"""Writes the operations' names into `kernel_dsl/__init__.py`, as editors want them: `python -m tests.architecture.exports`."""

from __future__ import annotations

import re
import subprocess
import sys

import kernel_dsl as kd
from kernel_dsl import ops
from tests.conftest import ROOT

FILE = ROOT / "kernel_dsl" / "__init__.py"


def families() -> dict[str, list[str]]:
    """The public names of each file of operations."""
    return {f.__name__.rpartition(".")[2]: sorted(f.__all__) for f in ops.FAMILIES if getattr(f, "__all__", [])}


def written(text: str) -> str:
    """The file's text with the imports of operations and `__all__` made anew; the rest stays, as do classes that annotate."""
    text = re.sub(r"(?m)^    from \.ops\.\w+ import (\([^)]*\)|(?!.* as ).*)\n", "", text)
    imports = "".join(f"    from .ops.{family} import {', '.join(names)}\n" for family, names in families().items())
    text = text.replace("    from .refs import", f"{imports}    from .refs import", 1)
    others = set(kd.__all__) - ops.NAMES
    names = sorted(others | ops.NAMES, key=lambda n: (not n.isupper(), not n[0].isupper(), n))
    listed = "".join(f'    "{name}",\n' for name in names)
    return re.sub(r"(?s)__all__ = \[.*?\]\n", f"__all__ = [\n{listed}]\n", text, count=1)


if __name__ == "__main__":
    FILE.write_text(written(FILE.read_text()))
    for command in (["check", "--fix", "-q"], ["format", "-q"]):
        subprocess.run([sys.executable, "-m", "ruff", *command, str(FILE)], check=True)
