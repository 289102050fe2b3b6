"""Random pipelines of large blocks and many steps, in as many blocks of the grid as fill a GPU, against NumPy.

`python -m tests.fuzz.crowds --count N --seed S [--device gpu]`. A load or a copy that is ordered too late goes wrong only where the
memory is busy: bank conflicts, many blocks in a multiprocessor, and copies that arrive while lanes still read. All data are
small integers, so that each sum is exact in float32, in any order.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

import kernel_dsl as kd
from tests.fuzz.choose import Choices

DATA = 4  # different inputs; block of the grid n takes input n % DATA
CROWD = 132 * 8  # blocks of the grid on a GPU
SMEM = 96 << 10  # bytes of blocks, so that a multiprocessor has at least two blocks of the grid
RESULTS = 1 << 26  # the most bytes of results on a GPU
FEW = 2  # blocks of the grid in the interpreter

# how a body reads its block b (rows, columns) with w (columns, columns): the kernel's part of the total, and NumPy's
READS: dict[str, tuple[Callable[[Any, Any], Any], Callable[[np.ndarray, np.ndarray], np.ndarray]]] = {
    "dot": (lambda b, w: kd.dot(b[...], w[...]), lambda b, w: b @ w),
    "dot of a transposed block": (lambda b, w: kd.dot(b.T[...], b[...]), lambda b, w: b.T @ b),
    "sum of rows": (lambda b, w: kd.sum(_f32(b[...]), axis=0), lambda b, w: b.sum(0)),
    "sum of columns": (lambda b, w: kd.sum(_f32(b[...]), axis=1), lambda b, w: b.sum(1)),
    "transposed": (lambda b, w: _f32(b.T[...]), lambda b, w: b.T),
    "whole": (lambda b, w: _f32(b[...]), lambda b, w: b),
    "every other": (lambda b, w: _f32(b[::2, 1::2]), lambda b, w: b[::2, 1::2]),
    "gather": (lambda b, w: _f32(b[(kd.arange(16) * 5) % 16, (kd.arange(16) * 3) % 16]), lambda b, w: _picked(b)),
    "a row at a time": (
        lambda b, w: kd.fori_loop(0, 16, lambda i, c: c + _f32(b[i]) * (i % 3), kd.zeros((b.shape[1],), kd.float32)),
        lambda b, w: (b[:16] * (np.arange(16) % 3)[:, None]).sum(0),
    ),
}  # fmt: skip
DTYPES = ("float16", "bfloat16", "float32", "int8", "int32", "float8_e4m3fn")
FORMS = ("one", "specialised", "manual", "two compute", "by hand")


def _f32(x: Any) -> Any:
    return x.astype(kd.float32)


def _picked(b: np.ndarray) -> np.ndarray:
    return b[(np.arange(16) * 5) % 16, (np.arange(16) * 3) % 16]


@dataclass(frozen=True)
class Crowd:
    """A pipeline: `steps` blocks of (rows, columns), `depth` buffers; `late`: the carry holds a block's values for a step."""

    form: str
    read: str
    dtype: str
    rows: int
    columns: int
    steps: int
    depth: int
    delay: int
    late: bool
    stored: bool  # each block times two is an output by the pipeline
    seed: int

    def source(self) -> str:
        return ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in fields(self))

    def arrays(self, steps: int) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(self.seed)
        dtype = getattr(kd, self.dtype).numpy
        x = rng.integers(-2, 3, (DATA, steps * self.rows, self.columns)).astype(dtype)
        return x, rng.integers(-1, 2, (self.columns, self.columns)).astype(dtype)

    def total(self) -> tuple[int, ...]:
        """The shape of the sum over the steps."""
        b, w = np.zeros((self.rows, self.columns)), np.zeros((self.columns, self.columns))
        return READS[self.read][1](b, w).shape

    def results(self) -> int:
        """Bytes of a block of the grid's results, about."""
        stored = self.steps * self.rows * self.columns * 4 if self.stored else 0
        return 8 * int(np.prod(self.total())) + stored

    def wanted(self, steps: int) -> tuple[np.ndarray, np.ndarray]:
        x, w = (a.astype(np.float64) for a in self.arrays(steps))
        blocks = x.reshape(DATA, steps, self.rows, self.columns)
        read = READS[self.read][1]
        return np.stack([sum(read(b, w) for b in run) for run in blocks]), x * 2

    def kernel(self, crowd: int, steps: int) -> Any:
        wgs = {"one": 1, "by hand": 1, "two compute": 3}.get(self.form, 2)
        compute = max(wgs - 1, 1)
        outs: list[Any] = [kd.ShapeDtypeStruct((crowd, compute, *self.total()), kd.float32)]
        if self.stored:
            outs.append(kd.ShapeDtypeStruct((crowd, steps * self.rows, self.columns), getattr(kd, self.dtype)))
        threads: Any = {} if wgs == 1 else {"num_threads": wgs, "thread_name": "wg"}
        by_hand = self.form == "by hand"
        block, dtype = (self.rows, self.columns), getattr(kd, self.dtype)
        scratch: Any = []
        if by_hand:
            scratch = [kd.SMEM((self.depth, *block), dtype), kd.Barrier(num_barriers=self.depth)]
        options: Any = {"grid": (crowd,), "grid_names": ("n",), "scratch_types": scratch, **threads}

        @kd.kernel(out_type=tuple(outs), name="crowd", **options)
        def crowded(x: Any, w: Any, *rest: Any) -> None:
            n = kd.axis_index("n")
            results, ring = [r.at[n] for r in rest[: len(outs)]], rest[len(outs) :]
            x = x.at[n % DATA]
            if by_hand:
                self._by_hand(x, w, results[0], steps, *ring)
            else:
                self._pipelines(x, w, results, steps, compute)

        return crowded

    def _step(self, b: Any, w: Any, carry: Any) -> Any:
        part = READS[self.read][0](b, w)
        if part.dtype != kd.float32:
            part = _f32(part)
        if not self.late:
            return carry + part
        total, before = carry
        return total + before, part

    def _start(self) -> Any:
        zero = kd.zeros(self.total(), kd.float32)
        return (zero, kd.zeros(self.total(), kd.float32)) if self.late else zero

    def _end(self, carry: Any) -> Any:
        return carry[0] + carry[1] if self.late else carry

    def _pipelines(self, x: Any, w: Any, outs: Any, steps: int, compute: int) -> None:
        manual = self.form == "manual"

        def body(_: Any, b: Any, *rest: Any) -> Any:
            *others, carry = rest
            carry = self._step(b, w, carry)
            if self.stored:
                store = lambda: others[0].__setitem__(..., b[...] * 2)  # noqa: E731
                kd.when(kd.axis_index("wg") == 0)(store) if compute > 1 else store()
            if manual:
                kd.barrier_arrive(others[-1])
            return carry

        block = (self.rows, self.columns)
        common: Any = {
            "grid": (steps,),
            "in_specs": [kd.BlockSpec(block, lambda i: (i, 0), delay_release=self.delay)],
            "out_specs": [kd.BlockSpec(block, lambda i: (i, 0))] if self.stored else [],
            "max_concurrent_steps": self.depth,
        }
        total, stored = outs[0], outs[1:]
        if self.form == "one":
            total[0] = self._end(kd.emit_pipeline(body, init_carry=self._start(), **common)(x, *stored))
            return

        def around(pipeline: Any) -> None:
            carry = self._end(pipeline(self._start()))
            total[kd.axis_index("wg")] = carry

        kd.emit_pipeline_warp_specialized(
            body, memory_registers=40, wg_axis="wg", num_compute_wgs=compute, manual_consumed_barriers=manual,
            compute_context=around, **common,
        )(x, *stored)  # fmt: skip

    def _by_hand(self, x: Any, w: Any, out: Any, steps: int, tiles: Any, full: Any) -> None:
        def load(step: Any) -> None:
            slot = step % self.depth
            kd.copy_gmem_to_smem(
                x.at[kd.ds(step * self.rows, self.rows)], tiles.at[slot], full.at[slot], predicate=step < steps
            )

        for ahead in range(self.depth):
            load(ahead)

        def one(step: Any, carry: Any) -> Any:
            slot = step % self.depth
            kd.barrier_wait(full.at[slot])
            carry = self._step(tiles.at[slot], w, carry)
            kd.commit_smem()
            load(step + self.depth)
            return carry

        out[0] = self._end(kd.fori_loop(0, steps, one, self._start()))

    def check(self, crowd: int, steps: int, interpret: Any) -> None:
        """Raise an AssertionError where a block of the grid's results differ from NumPy's."""
        x, w = self.arrays(steps)
        made = self.kernel(crowd, steps)(x, w, interpret=interpret)
        totals, doubled = self.wanted(steps)
        for number, (got, want) in enumerate(zip(made, (totals[:, None], doubled), strict=False)):
            got = np.asarray(got)
            want = want.astype(got.dtype)
            for n in range(crowd):
                wrong = np.count_nonzero(got[n] != want[n % DATA])
                assert not wrong, f"output {number} of block {n}: {wrong} of {got[n].size} elements are wrong"


def generate(seed: int) -> Crowd:
    """The pipeline of a seed."""
    c = Choices(seed)
    form, read = c.one(FORMS), c.one([*READS])
    dtype = c.one(DTYPES)
    rows, columns = c.one([16, 32, 64, 128]), c.one([16, 32, 64, 128])
    if "dot" in read:
        dtype = c.one(("float16", "bfloat16"))
        rows, columns = c.one([64, 64, 128]), c.one([16, 32, 64])
    stored = form != "by hand" and c.chance(0.3)
    size = rows * columns * getattr(kd, dtype).itemsize * (2 if stored else 1)
    depth = min(c.between(1 if form == "one" else 2, 4), max(SMEM // size, 1))
    delay = 1 if depth > 1 and form in ("one", "specialised") and c.chance(0.3) else 0
    late = rows * columns <= 4096 and c.chance(0.4)
    return Crowd(form, read, dtype, rows, columns, c.between(20, 60), depth, delay, late, stored, seed)


def attempt(seed: int, gpu: bool = False, schedule: str = "late", launches: int = 3) -> str | None:
    """What is wrong with the pipeline of a seed, or None."""
    program = generate(seed)
    try:
        if gpu:
            crowd = min(CROWD, RESULTS // program.results())
            for _ in range(launches):
                program.check(crowd, program.steps, False)
        else:
            program.check(FEW, program.depth + 2, kd.InterpretParams(schedule=schedule, seed=seed))
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:2000]}\n{program.source()}"
    return None


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.crowds", description=__doc__)
    parser.add_argument("--count", type=int, default=100, help="how many pipelines")
    parser.add_argument("--seed", type=int, default=0, help="the first one's seed; the others follow")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin none after so many seconds")
    parser.add_argument("--device", choices=["interpreter", "gpu"], default="interpreter")
    options = parser.parse_args()
    start, failed, done = time.perf_counter(), 0, 0
    for seed in range(options.seed, options.seed + options.count):
        if time.perf_counter() - start > options.seconds:
            break
        wrong = attempt(seed, options.device == "gpu")
        failed += wrong is not None
        done += 1
        if wrong:
            print(f"{seed}: {wrong}", flush=True)
    print(f"{done} pipelines from seed {options.seed}: {failed} failures, {time.perf_counter() - start:.1f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
