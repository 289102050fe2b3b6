"""What must stay as it is while the code behind it changes.

    python -m tests.gate [code|outputs|steps]            compare with the committed files; status 1 if anything differs
    python -m tests.gate --renew [code|outputs|steps]    write them anew, and say what changed
    python -m tests.gate NAME [--target sm_80]           the IR, LLVM text and PTX of a kernel
    python -m tests.gate NAME --against DIR              how they differ from those of another checkout
    python -m tests.gate --against DIR                   whose code differs from that of another checkout

A commit that renews a file says why; one that changes no behaviour leaves them all as they are.
"""

from __future__ import annotations

import argparse
import difflib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from . import code, entries, outputs, steps
from .kernels import kernels

GATES = {gate.name: gate for gate in (code.GATE, outputs.GATE, steps.GATE)}
# run in the other checkout: its own gate, or this one over its packages where it has none
_THERE = """
import json, sys
import tests
tests.__path__.append(sys.argv[1])
from tests.gate import code
print(json.dumps(code.texts(*sys.argv[2:]) if sys.argv[2:] else code.entries()))
"""


def main(arguments: list[str]) -> int:
    """The status to end with."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.gate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"a kernel, or {', '.join(GATES)}")
    parser.add_argument("--renew", action="store_true", help="write the committed files anew")
    parser.add_argument("--target", help="the target whose code is shown")
    parser.add_argument("--against", type=Path, metavar="DIR", help="another checkout")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in GATES and name not in kernels()]
    if unknown:
        near = [n for name in unknown for n in difflib.get_close_matches(name, kernels())]
        parser.error(f"no kernel is named {', '.join(unknown)}" + (f"; some are {', '.join(near)}" if near else ""))
    shown = [name for name in options.names if name not in GATES]
    if options.renew and (shown or options.against):
        parser.error("--renew goes with the names of files only")
    if shown:
        return max(_show(name, options.target or _target(name), options.against) for name in shown)
    if options.against:
        return _list(_compared(options.against))
    chosen = [GATES[name] for name in options.names or GATES]
    if not options.renew:
        return _list(line for gate in chosen for line in gate.changes())
    _list(line for gate in chosen for line in gate.renew())
    return 0


def _list(lines: Any) -> int:
    count = 0
    for count, line in enumerate(lines, 1):  # noqa: B007 - the last number is how many there are
        print(line, flush=True)
    print(f"{count} differences" if count else "nothing differs")
    return bool(count)


def _target(name: str) -> str:
    targets = kernels()[name].targets
    return "sm_90a" if "sm_90a" in targets else targets[-1]


def _show(name: str, target: str, against: Path | None) -> int:
    """Print a kernel's texts, or how they differ; 1 if they do."""
    here = code.texts(name, target)
    there = _elsewhere(against, name, target) if against else {}
    differ = 0
    for part, text in here.items():
        if not against:
            print(f"--- {part} of {name} for {target}\n{text}")
            continue
        title = f"{part} of {name} for {target}"
        old, new = there[part].splitlines(), text.splitlines()
        for line in difflib.unified_diff(old, new, f"{title}, {against}", f"{title}, here", lineterm=""):
            differ = 1
            print(line)
    return differ


def _compared(against: Path) -> Any:
    """Whose code differs. Kernels that one of the two does not have are named, too."""
    there, here = _elsewhere(against), code.entries()
    return entries.compare("code", there, here, code.difference)


def _elsewhere(checkout: Path, *what: str) -> dict[str, str]:
    command = [sys.executable, "-c", _THERE, str(entries.FOLDER.parent), *what]
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{checkout}: {done.stderr.strip().splitlines()[-1]}")
    return json.loads(done.stdout)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
