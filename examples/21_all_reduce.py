"""An all-reduce: every GPU gets the sum of all GPUs' arrays. Without two GPUs, it runs on two virtual ones.

Run it: `python examples/21_all_reduce.py`, or with one process for each GPU: `torchrun --nproc-per-node 2
examples/21_all_reduce.py`.
"""

from __future__ import annotations

import os

import numpy as np

import kernel_dsl as kd

DEVICES, BLOCKS, N = 2, 8, 4096
mesh = kd.Mesh(("x",), (DEVICES,))


@kd.kernel(
    out_type=lambda x: kd.ShapeDtypeStruct(x.shape, x.dtype),
    scratch_types=[kd.SemaphoreType.REGULAR, kd.SemaphoreType.REGULAR],
    grid=(BLOCKS,),
    grid_names=("block",),
    mesh=mesh,
)
def all_reduce(x, total, ready, read):
    part = kd.ds(kd.axis_index("block") * (N // BLOCKS), N // BLOCKS)
    kd.semaphore_signal_multicast(ready, collective_axes="x")
    kd.semaphore_wait(ready, DEVICES, timeout=10)  # every GPU has arrived: its array is complete
    values = [kd.remote_ref(x, device)[part] for device in range(DEVICES)]  # in the same order on every GPU
    total[part] = sum(values[1:], values[0])
    kd.semaphore_signal_multicast(read, collective_axes="x")
    kd.semaphore_wait(read, DEVICES, timeout=10)  # no GPU reads this array any more


def main() -> None:
    rng = np.random.default_rng(0)
    xs = [rng.standard_normal(N).astype(np.float32) for _ in range(DEVICES)]
    if "RANK" in os.environ:  # under torchrun this process has one GPU, and passes one array
        from one_rank import one_rank

        with one_rank() as (rank, placed):
            totals = {rank: all_reduce(placed(xs[rank])).cpu().numpy()}
    else:
        totals = dict(enumerate(all_reduce(xs)))
    for device, total in totals.items():
        error = np.abs(total - sum(x.astype(np.float64) for x in xs)).max()
        print(f"device {device}: largest error {error:.1e}")
        assert error < 1e-6


if __name__ == "__main__":
    main()
