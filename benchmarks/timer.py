"""By how much `%globaltimer` moves, which profiles have their times from: `python -m benchmarks.timer [--reads N] [--times N]`.

One lane reads it over and over. Reads that follow each other differ by nothing, or by steps of the clock: the least step that was
seen, the greatest common divisor of all, and how often each was seen. The clock may go on in another step after a change of the
GPU's state, so it is read several times. In the interpreter it counts instructions.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import Counter
from typing import Any

import numpy as np

import kernel_dsl as kd


def reads_of(count: int) -> Any:
    """The kernel `() -> int64 (count,)` of as many readings."""

    @kd.kernel(out_type=kd.ShapeDtypeStruct((count,), kd.int64), name="read_timer")
    def read_timer(times: Any) -> None:
        @kd.loop(0, count)
        def _(i: Any) -> None:
            times[i] = kd.inline_ptx("mov.u64 $0, %globaltimer;", out_type=kd.int64)

    return read_timer


def steps(times: Any) -> dict[str, Any]:
    """What the differences of readings say, in nanoseconds."""
    moved = [int(n) for n in np.diff(np.asarray(times)) if n]
    if not moved or min(moved) < 0:
        raise RuntimeError(f"the clock did not move forward in {len(times)} readings")
    common = Counter(moved).most_common(4)
    return {
        "readings": len(times),
        "least_ns": min(moved),
        "divisor_ns": math.gcd(*moved),
        "most_often_ns": dict(common),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reads", type=int, default=65536)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--interpret", action="store_true", help="not on the GPU")
    options = parser.parse_args()
    kernel = reads_of(options.reads)
    for _ in range(options.times):
        print(json.dumps(steps(kernel(interpret=options.interpret or None))), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
