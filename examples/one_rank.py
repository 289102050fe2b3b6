"""The set-up of an example under `torchrun` with one process for each GPU: torch's process group and its symmetric
memory.

If there is no GPU for each process, all tensors are on the CPU, and each process runs the interpreter.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import kernel_dsl as kd


@contextmanager
def one_rank() -> Iterator[tuple[int, Callable[[np.ndarray], Any]]]:
    """This process's rank, and a function that all ranks call: it copies an array to memory that peers reach."""
    gpus = torch.cuda.device_count() >= int(os.environ["WORLD_SIZE"])
    dist.init_process_group("nccl" if gpus else "gloo")
    if gpus:
        torch.cuda.set_device(dist.get_rank())

    def placed(x: np.ndarray) -> Any:
        words = torch.from_numpy(np.ascontiguousarray(x).view(np.uint8))
        made = kd.symmetric.empty(x.shape, x.dtype, dist.group.WORLD, interpret=None if gpus else True)
        made.view(torch.uint8).copy_(words)
        return made

    try:
        yield dist.get_rank(), placed
        dist.barrier()
    finally:
        dist.destroy_process_group()


def to_numpy(x: Any, dtype: Any) -> np.ndarray:
    """A tensor as a NumPy array of a dtype that torch may not know."""
    return x.cpu().view(torch.uint8).numpy().view(dtype)
