"""How fast this machine is: bounds on processor time are those of one machine, and a slower one has its own."""

from __future__ import annotations

import time

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


def slowness() -> float:
    """How many times as long as the reference this machine takes now; at least 1."""
    best = 1e9
    for _ in range(7):
        start = time.thread_time()
        _work()
        best = min(best, time.thread_time() - start)
    return max(1.0, best / REFERENCE)
