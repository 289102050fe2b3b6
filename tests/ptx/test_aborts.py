"""LLVM ends the process on what it can't select. Every op with every dtype for every target, in child processes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from kernel_dsl.target import TARGETS
from tests.conftest import ROOT

_CODE = """
import gc, sys
import numpy as np
import kernel_dsl as kd
from tests import table
from tests.fuzz.choose import DTYPES
gc.disable()  # what is compiled stays small
targets, shares = sys.argv[1].split(), int(sys.argv[2])
Spec = kd.ShapeDtypeStruct
name = lambda d: "bool_" if d == "bool" else d
done = refused = seen = 0

def attempt(label, body, specs, outs):
    global done, refused, seen
    seen += 1
    if seen % shares >= len(targets):
        return
    target = targets[seen % shares]
    print(label, "for", target, flush=True)  # the last one printed is the one that killed the process
    try:
        kd.kernel(body, out_type=outs).lower(*specs, target=target).ptx
        done += 1
    except kd.Error:
        refused += 1

for row in table.ROWS:
    for dtype, _ in DTYPES:
        outs = Spec((40,), table.result_dtype(row, dtype))
        def storing(*refs):
            refs[-1][...] = row.function(*(r[...] for r in refs[:-1])).astype(refs[-1].dtype)
        attempt(f"{row.name} of {dtype}", storing, (Spec((40,), dtype),) * row.arity, outs)
for a, _ in DTYPES:
    for b, _ in DTYPES:
        attempt(f"{a} to {b}", lambda x, o: o.__setitem__(..., x[...].astype(o.dtype)), (Spec((40,), a),), Spec((40,), b))
    for word in ("sum", "max", "min", "prod", "mean", "argmax", "any", "all", "cumsum", "cummax"):
        f = getattr(kd, word, None)
        if f is not None:
            attempt(f"{word} of {a}", lambda x, o: o.__setitem__(..., f(x[...], axis=1).astype(o.dtype)),
                    (Spec((5, 40), a),), Spec((5, 40) if word.startswith("cum") else (5,), a))
    for word in ("add", "max", "min", "and", "or", "xor", "xchg"):
        f = getattr(kd, "atomic_" + word, None)
        if f is not None:
            for scope in ("cta", "gpu", "sys", "cluster"):
                attempt(f"atomic {word} {scope} of {a}", lambda x, o: f(o, x[...], scope=scope) and None,
                        (Spec((40,), a),), Spec((40,), a))
    for shape in ((), (1,), (3, 1, 5), (0,), (2, 0, 3), (300, 7)):
        attempt(f"copy of {a}{shape}", lambda x, o: o.__setitem__(..., x[...]), (Spec(shape, a),), Spec(shape, a))
print("counted", done, refused, flush=True)
"""


def _run(targets: tuple[str, ...], shares: int) -> None:
    """One of `shares` combinations for each of these targets."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _CODE, " ".join(targets), str(shares)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    lines = done.stdout.splitlines()
    last = lines[-1] if lines else ""
    assert done.returncode == 0, f"{targets}: ended with {done.returncode} at {last!r}\n{done.stderr[-1500:]}"
    word, compiled, refused = last.split()
    assert word == "counted" and int(compiled) > 500 * len(targets) / shares and int(refused) > 0, last


def test_nothing_ends_the_process() -> None:
    """One in sixteen of the combinations, each on one target or another."""
    _run(TARGETS, 16 * len(TARGETS))


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_nothing_ends_the_process_anywhere(target: str) -> None:
    """Each combination on each target."""
    _run((target,), 1)
