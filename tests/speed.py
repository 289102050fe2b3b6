"""How fast this machine is: bounds on processor time are those of one machine, and a slower one has its own."""

from __future__ import annotations

import time
from collections.abc import Callable

# What `_work` took where the bounds were set: two quiet cores on which a chain of 800 ops compiled in 65 ms.
REFERENCE = 3.4e-3


def _work() -> int:
    """Calls, attributes, dictionaries: what tracing and lowering are made of."""
    table: dict[tuple[int, str], list[int]] = {}
    for i in range(20_000):
        entry = table.setdefault((i % 257, str(i % 31)), [])
        entry.append(i)
        if len(entry) > 8:
            entry.clear()
    return len(table)


def seconds(work: Callable[[], object]) -> float:
    """The processor time that `work()` takes."""
    start = time.process_time()
    work()
    return time.process_time() - start


def on_the_reference(work: Callable[[], object], bound: float, tries: int = 30) -> float:
    """Seconds of processor time that `work()` would take on the machine on which the bounds were set.

    Each try measures the machine's speed beside the work, as other programs slow it down for seconds at a time. Noise only adds,
    so the least of each counts. The tries end as soon as the result is within the bound, so only what is too slow takes them all.
    """
    least = unit = float("inf")
    result = least
    for _ in range(tries):
        unit = min(unit, *(seconds(_work) for _ in range(3)))
        least = min(least, seconds(work))
        result = least / max(1.0, unit / REFERENCE)
        if result <= bound:
            break
    return result
