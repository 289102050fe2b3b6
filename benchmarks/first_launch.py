"""The first launch of fresh processes whose disk cache is warm: processor time, wall time and the modules that it imports.

    python -m benchmarks.first_launch --rows matmul,attention --seconds 50     # needs a GPU and torch; prints JSON

Before the call each process imports torch, kernel_dsl and the function, and makes the arrays and so the CUDA context.
Imports of the call itself count. Python keeps bytecode, as it does unless it is told not to. The first process of a row
fills a cache of its own; the others, one of each row in turn until the seconds end, are the samples.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from statistics import median
from typing import Any

ROWS = {
    "matmul": "kd.library.matmul(a, a)",
    "attention": "kd.library.attention(q, q, q)",
    "gradients": "kd.library.attention(r, r, r).sum().backward()",
    "softmax": "softmax(x)",
}
MOST, LONGEST = 9, 120.0  # samples of a row; seconds of a process

CHILD = """
import json, sys, time
import torch
import kernel_dsl as kd
kd.library.matmul, kd.library.attention
a = torch.ones(1024, 1024, dtype=torch.float16, device="cuda")
q = torch.ones(1, 8, 512, 128, dtype=torch.float16, device="cuda")
r = q.clone().requires_grad_()
x = torch.ones(1024, 1024, device="cuda")
r.sum().backward()  # what PyTorch itself imports for gradients
r.grad = None
torch.cuda.synchronize()

@kd.kernel(out_type=lambda x: x, grid=lambda x: (x.shape[0],), grid_names=("row",))
def softmax(x, out):
    row = x[kd.axis_index("row")]
    e = kd.exp(row - row.max())
    out[kd.axis_index("row")] = e / e.sum()

before = set(sys.modules)
wall, processor = time.perf_counter(), time.process_time()
CALL
wall, processor = time.perf_counter() - wall, time.process_time() - processor
new = [name for name in sys.modules if name not in before]
from kernel_dsl import loading
torch.cuda.synchronize()
disk = loading.kernel_cache().disk.counters
found = {"processor_ms": processor * 1e3, "wall_ms": wall * 1e3, "misses": disk.misses, "imported": new}
print(json.dumps(found))
"""


def sample(row: str, folder: str) -> dict[str, Any]:
    """One process with the disk cache in `folder`."""
    code = CHILD.replace("CALL", ROWS[row])
    with tempfile.NamedTemporaryFile("w", suffix=".py", dir=folder) as file:  # a kernel's body needs its source
        file.write(code)
        file.flush()
        env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"} | {
            "KERNEL_DSL_CACHE": os.path.join(folder, "cache"),
            "PYTHONPYCACHEPREFIX": os.path.join(folder, "bytecode"),
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        run = subprocess.run(
            [sys.executable, file.name], env=env, capture_output=True, text=True, timeout=LONGEST, check=False
        )
    if run.returncode:
        raise RuntimeError(f"{row}: {run.stderr[-2000:]}")
    return json.loads(run.stdout.splitlines()[-1])


def main() -> None:
    """Print a JSON object: a row's medians, samples and imported modules."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", default="matmul,attention")
    parser.add_argument("--seconds", type=float, default=50.0)
    given = parser.parse_args()
    rows, end = given.rows.split(","), time.monotonic() + given.seconds
    taken: dict[str, list[dict[str, Any]]] = {row: [] for row in rows}
    with tempfile.TemporaryDirectory() as folder:
        for row in rows:
            sample(row, folder)
        while any(len(of) < MOST for of in taken.values()):
            for row in rows:
                taken[row].append(sample(row, folder))
            if time.monotonic() > end:
                break
    result: dict[str, Any] = {}
    for row, of in taken.items():
        if any(one["misses"] for one in of):
            raise RuntimeError(f"{row}: the cache was not warm")
        result[row] = {
            key: [round(median(one[key] for one in of), 2), [round(one[key], 2) for one in of]]
            for key in ("processor_ms", "wall_ms")
        } | {"imported": of[-1]["imported"]}
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
