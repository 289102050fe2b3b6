"""Tuned configurations of the library: a problem's key as text, and the fastest configuration for it.

A call's plan looks its configuration up here, once for each signature. Without tuned results this only finds that a
file is missing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kernel_dsl.loading import gpu_name
from kernel_dsl.tuning_file import fastest, tuned_results, written
from kernel_dsl.tuning_table import TuningRow

# the functions in files of results: public names, which stay where modules move
MATMUL, ATTENTION = "kernel_dsl.library.matmul", "kernel_dsl.library.attention"


@dataclass(frozen=True)
class RouteChoice:
    """A way to compute a product: a kernel ("fast", "tile", "lane" or "vector"), the number of parts of K, the kernel's sizes.

    `copies`: how a and b lie that are copied first, "along k" or "along rows", otherwise "". `lanes`: whether lanes store.
    """

    kernel: str
    parts: int
    config: Any
    copies: tuple[str, str] = ("", "")
    lanes: bool = False


def look_up(kernel: str, key: Callable[[], str | None], options: Callable[[], dict[str, Any]]) -> Any:
    """The fastest of `options` on this GPU for a key, found by its text; None if there are no results.

    `key()` is None for problems without a text. If nothing was tuned, neither function is called.
    """
    results = tuned_results()
    if not results.has(kernel):
        return None
    gpu, text = gpu_name(), key()
    if gpu is None or text is None:
        return None
    lines = results.find((gpu, kernel, "", text))
    known = options() if lines else {}
    found = fastest(lines, known)
    return None if found is None else known[found]


def ranked(predicted: list[tuple[float, Any]], clock: float) -> list[TuningRow[Any]]:
    """Rows from (clocks, configuration), the fewest clocks first, each configuration once; microseconds at `clock` Hz."""
    rows: dict[str, TuningRow[Any]] = {}
    for clocks, config in sorted(predicted, key=lambda option: option[0]):
        text = written(config)
        rows.setdefault(text, TuningRow(config, text, clocks / clock * 1e6))
    return list(rows.values())
