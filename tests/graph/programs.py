"""Random programs of kernels on a few arrays: the same one is run eagerly and recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

SIZE = 32


class GraphProgram:
    """`steps` random calls of `kernels`, from a seed.

    A kernel takes two arrays and gives one: `kernel(a, b)` or `kernel(a, b, out=c)`. `part(array,
    half)` is a view of an array's first or second half; `whole(values)` makes an array.
    """

    def __init__(
        self,
        seed: int,
        kernels: list[Callable[..., Any]],
        whole: Callable[[np.ndarray[Any, Any]], Any],
        part: Callable[[Any, int], Any],
        steps: int = 24,
    ) -> None:
        choose = np.random.default_rng(seed)
        self.kernels, self.whole, self.part = kernels, whole, part
        self.inputs = 3
        self.plan: list[tuple[int, tuple[int, int], tuple[int, int], int | None]] = []
        written = 0  # arrays 0 to 2 are inputs; then two that calls write to; then results
        for _ in range(steps):
            count = 5 + written
            operands = [(int(choose.integers(count)), int(choose.integers(3))) for _ in range(2)]
            target = int(choose.integers(3, 5)) if choose.random() < 0.25 else None
            if target is not None:
                # Whole arrays only, and never what is written.
                operands = [(i if i != target else 0, 2) for i, _ in operands]
            # Views of what is only read would be inputs of their own.
            own = {t for *_, t in self.plan if t is not None}
            operands = [(i, half if i >= 5 or i in own else 2) for i, half in operands]
            sizes = {self._size(i, half) for i, half in operands}
            if len(sizes) != 1 or (target is not None and sizes != {SIZE}):
                continue
            kernel = int(choose.integers(len(kernels)))
            self.plan.append((kernel, operands[0], operands[1], target))
            if target is None:
                self.sizes.append(sizes.pop())
                written += 1

    @property
    def sizes(self) -> list[int]:
        """Elements of every array so far."""
        if not hasattr(self, "_sizes"):
            self._sizes = [SIZE] * 5
        return self._sizes

    def _size(self, index: int, half: int) -> int:
        return self.sizes[index] if half == 2 else self.sizes[index] // 2

    def run(self, inputs: list[Any], given: list[Any]) -> list[Any]:
        """Make the calls. Returns every result, in order."""
        arrays = [*inputs, *given]
        for kernel, (i, half_i), (j, half_j), target in self.plan:
            a, b = (arrays[k] if half == 2 else self.part(arrays[k], half) for k, half in ((i, half_i), (j, half_j)))
            if target is None:
                arrays.append(self.kernels[kernel](a, b))
            else:
                self.kernels[kernel](a, b, out=arrays[target])
        return arrays[5:]

    def values(self, seed: int) -> list[np.ndarray[Any, Any]]:
        """Random values for the five arrays."""
        choose = np.random.default_rng(seed)
        return [choose.integers(-1000, 1000, SIZE).astype(np.int32) for _ in range(5)]


def check(program: GraphProgram, host: Callable[[Any], np.ndarray[Any, Any]], seed: int) -> None:
    """Record the program, and replay it with several inputs: all memory must be what eager gives."""
    from kernel_dsl.runtime.graph import Graph

    start = program.values(seed)
    arrays = [program.whole(v.copy()) for v in start]
    inputs, given = arrays[:3], arrays[3:]
    with Graph() as g:
        results = program.run(inputs, given)
    kept = [r for k, r in enumerate(results) if k % 3 == 0]
    if kept:
        g.outputs = kept
    # A given array that is only read is an input too.
    read = [next(k for k, array in enumerate(arrays) if array is x) for x in g.inputs]
    for attempt in range(4):
        fresh = program.values(seed + attempt + 1)
        now = [program.whole(fresh[k].copy()) if k in read and attempt else arrays[k] for k in range(5)]
        eager = [program.whole(host(a).copy()) for a in now]
        eager_given = eager[3:]
        expected = program.run(eager[:3], eager_given)
        g(*([now[k] for k in read] if attempt else []))
        given = now[3:]
        for a, e in zip(given, eager_given, strict=True):
            np.testing.assert_array_equal(host(a), host(e))
        for k, result in enumerate(results):
            if k % 3 == 0:
                np.testing.assert_array_equal(host(result), host(expected[k]), err_msg=f"result {k}")
