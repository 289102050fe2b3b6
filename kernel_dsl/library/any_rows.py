"""Products of matrices that differ in M alone: one kernel for the first M, and others that take any.

The first M gets code of its own, as most programs have one. From the second on M is a `kd.Dim`. A configuration that was
compiled already is taken where the cost model gives it `ENOUGH` of the speed of the best, so that a new M seldom compiles.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from .. import forking
from .blocks import takes_any_rows
from .problem import Problem

ENOUGH = 0.97  # of the speed of the best configuration, by the cost model
MANY = 1024  # products that are kept

_first: dict[Any, int] = {}  # the M that came first, by all else of a product
_known: dict[Any, list[Any]] = {}  # configurations that take any M
_lock = forking.lock()


def kernel_for(
    make: Callable[..., Any], p: Problem, config: Any, blocks: tuple[int, ...], cost: Callable[[Problem, Any], float]
) -> Any:
    """What `make(problem, config, *blocks, any_rows=)` gives for a product that `config` is the best for; `cost`: in clocks."""
    if not takes_any_rows(p):
        return make(p, config, *blocks)
    rest = replace(p, M=0)
    key = (make, rest, blocks)
    with _lock:
        if len(_first) >= MANY:
            _first.clear()
            _known.clear()
        if _first.setdefault(key, p.M) == p.M:
            return make(p, config, *blocks)
        known = _known.setdefault(key, [])
        best = cost(p, config)
        good = [t for t in known if ENOUGH * cost(p, t) <= best]
        if not good:
            known.append(config)
            good = [config]
    return make(rest, min(good, key=lambda t: cost(p, t)), *blocks, any_rows=True)
