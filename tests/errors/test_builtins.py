"""Python's own syntax and functions on traced values: each works, or its error names what to write instead."""

from __future__ import annotations

import copy
import json
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from tests.errors.harness import last_frame

X = np.arange(1, 17, dtype=np.float32).reshape(4, 4)

# In a body where v is float32[4, 4], s a rank-0 float32, n a rank-0 int32, r and o Refs, b a bool[4, 4]: what the help names
REFUSED = {
    "range(n)": "kd.fori_loop",
    "for i in range(n):\n    pass": "kd.loop",
    "max(v, 0)": "kd.maximum",
    "min(v, 0)": "kd.minimum",
    "max(s, 0)": "kd.maximum",
    "sorted(v)": "kd.sort",
    "sorted(v[0])": "kd.sort",
    "any(b[0])": "kd.any",
    "all(b[0])": "kd.all",
    "if s > 0:\n    pass": "kd.when",
    "y = 1 if s > 0 else 2": "kd.where",
    "while s > 0:\n    pass": "kd.while_loop",
    "assert s > 0": "kd.debug_check",
    "assert (v > 0).all()": "kd.debug_check",
    "s > 0 and s < 1": "`&`",
    "s > 0 or s < 1": "`|`",
    "not b": "`~`",
    "0 < s < 1": "`&`",
    "0 < v < 1": "kd.where",
    "match n:\n    case 0: pass": "kd.switch",
    "match v:\n    case 0: pass": "kd.where",
    "v[0] = 1": "kd.store",
    "v[0, 1] += 1": "kd.where",
    "del v[0]": "kd.where",
    "with v:\n    pass": "kd.",
    "0 in v": "kd.any",
    "s in [1, 2]": "kd.any",
    "len(s)": "",
    "iter(s)": "kd.fori_loop",
    "for row in s:\n    pass": "kd.fori_loop",
    "list(s)": "kd.",
    "int(n)": "astype",
    "float(s)": "astype",
    "complex(s)": "",
    "bool(s)": "kd.where",
    "f'{s:.2f}'": "kd.debug_print",
    "format(s, '.2f')": "kd.debug_print",
    "'%d' % n": None,
    "pow(s, 2, 3)": "kd.power",
    "math.sin(s)": "kd.sin",
    "math.sqrt(s)": "kd.sqrt",
    "math.floor(s)": "kd.floor",
    "math.ceil(s)": "kd.ceil",
    "math.trunc(s)": "kd.trunc",
    "[1, 2, 3][n]": "kd.switch",
    "(1, 2)[n]": "kd.switch",
    "[1, 2, 3][:n]": "kd.",
    "{1: 2}[n == 1]": None,
    "'ab' * n": "",
    "bytes(n)": "",
    "hex(n)": "",
    "np.array(v)": "kernel_dsl",
    "np.asarray(v)": "kernel_dsl",
    "np.linalg.norm(v)": "kernel_dsl",
    "np.einsum('ij->i', v)": "kernel_dsl",
    "np.sum(v, out=np.zeros(4))": "sum(",
    "np.zeros(3)[n]": "",
    "pickle.dumps(v)": "output Ref",
    "r + 1": "ref[...]",
    "r += 1": "ref[...]",
    "o -= 1": "ref[...]",
    "max(r, 0)": "ref[...]",
    "np.sin(r)": "ref[...]",
    "np.asarray(r)": "ref[...]",
    "float(r)": "ref[...]",
    "round(r)": "ref[...]",
    "divmod(r, 2)": "ref[...]",
    "0 in r": "ref[...]",
    "if r:\n    pass": "kd.when",
    "for row in r:\n    pass": "kd.fori_loop",
    "x[n:n + 2]": None,
    "r[n:n + 2]": "kd.ds",
    "r['a']": "",
    "r[1.5]": "",
    "v[b]": "",
    "v + [1, 2, 3, 4]": "NumPy",
    "v + None": "",
    "v + 'a'": "",
    "v @ [1]": "",
    "v << 1.5": "",
    "v.sum(axis='x')": "axes go",
    "kd.fori_loop(0, 3, lambda i: i, v)": "body_fun(i, val)",
    "kd.fori_loop(0, 3, None, v)": "a function",
    "kd.fori_loop(0, 3, lambda i, a: None, v)": "same nesting",
    "kd.cond(s > 0, lambda: v, 3)": "false_fun",
    "kd.cond(s > 0, lambda: r, lambda: r)": "Refs are closed over",
    "kd.while_loop(lambda a: a, lambda a: a, v)": "",
    "kd.when(s > 0)(lambda: 1)": "kd.cond",
    "kd.when(s > 0)(3)": "a function",
    "kd.loop(0, 3)(lambda i: i)": "init_carry",
    "kd.switch(n, [lambda: 1, 2])": "branch",
    "kd.run_scoped(lambda: None, kd.SMEM((4, 4), kd.float32))": "f(*refs)",
    "kd.run_state(lambda ref: ref[...])(v)": "write results to the Refs",
    "kd.run_state(lambda a, b: None)(v)": "f(refs)",
    "kd.warp_map(lambda w: w)": "Refs",
    "kd.fori_loop(0, 3, generator, v)": "yield",
    "kd.when(s > 0)(coroutine)": "async",
}  # fmt: skip

WORKS = {
    "sum(v)",
    "abs(v)",
    "divmod(v, 2)",
    "round(v)",
    "round(v, 1)",
    "pow(v, 2)",
    "len(v)",
    "list(v)",
    "enumerate(v)",
    "[a + b for a, b in zip(v, v)]",
    "list(reversed(v))",
    "a, b, c, d = v",
    "v is None",
    "v is not None",
    "hash(v)",
    "{v: 1}",
    "f'{v}'",
    "str(v), repr(v)",
    "isinstance(v, object)",
    "copy.copy(v), copy.deepcopy(v)",
    "np.sin(v)",
    "np.where(v > 0, v, 0)",
    "np.concatenate([v, v])",
    "np.sum(v, axis=0)",
    "np.shape(v), np.ndim(v), np.size(v)",
    "np.transpose(v)",
    "v += 1",
    "v ** 2",
    "-v, +v, ~b",
    "v[0], v[-1], v[::2], v[None], v[..., 0]",
    "v == v, v != v, v < v",
    "s if True else v",
    "getattr(v, 'shape')",
    "hasattr(v, 'foo')",
    "o[...] = v",
    "o[0] = 1",
    "r[n]",
}


async def coroutine() -> None:
    return None


def generator(*args: Any) -> Any:
    yield args


def _run(statement: str, path: Path) -> BaseException | None:
    """What a kernel raises whose body is this one statement."""
    lines = "\n    ".join(statement.splitlines())
    path.write_text(f"def body(r, n, o):\n    v, s, b = r[...], r[0, 0], r[...] > 0\n    {lines}\n")
    names: dict[str, Any] = {
        "kd": kd, "np": np, "math": math, "pickle": pickle, "json": json, "copy": copy, "coroutine": coroutine, "generator": generator,
    }  # fmt: skip
    exec(compile(path.read_text(), str(path), "exec"), names)
    try:
        kd.kernel(names["body"], out_type=X).lower(X, 3)
    except Exception as error:
        return error
    return None


@pytest.mark.parametrize("statement", REFUSED)
def test_refused(statement: str, tmp_path: Path) -> None:
    path = tmp_path / "body.py"
    error = _run(statement, path)
    if REFUSED[statement] is None:  # Python's own error, in which no call of ours took part
        assert type(error) in (KeyError, NameError, TypeError) and last_frame(error) == str(path)
        return
    assert isinstance(error, kd.Error), f"{type(error)}: {error}"
    text = str(error)
    assert f"{path}:3" in text or f"{path}:4" in text, "not at the user's line"
    assert last_frame(error) == str(path)
    assert "= help:" in text or "= note:" in text
    assert REFUSED[statement] in text, text
    assert type(error).__name__ not in ("UnusableArgument", "UnusableValue"), text


@pytest.mark.parametrize("statement", sorted(WORKS))
def test_works(statement: str, tmp_path: Path) -> None:
    error = _run(statement, tmp_path / "body.py")
    assert error is None, f"{type(error)}: {error}"
