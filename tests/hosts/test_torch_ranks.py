"""One process a rank, with torch's process groups: gloo, and the interpreter in each process."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.errors import BadArgumentType

pytest.importorskip("torch", reason="torch is not installed")

ROOT = Path(__file__).resolve().parents[2]
RANK = """
import os, pickle, sys
from datetime import timedelta
import numpy as np, torch, torch.distributed as dist
import kernel_dsl as kd
from kernel_dsl.runtime.mesh import ranks
rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2, timeout=timedelta(seconds=20))
group = dist.group.WORLD
mesh = kd.Mesh(("x",), (2,))
said = {}
x = kd.symmetric.empty((100,), kd.float32, group)
x.fill_(rank + 1)
said["sum"] = kd.library.all_reduce(x, group).numpy()
said["by mesh"] = kd.library.all_gather(x[:3], mesh).numpy()
try:
    kd.library.all_reduce(x[: 10 + rank], group)
except kd.errors_mesh.RanksDiffer as error:
    said["differ"] = str(error)
known = ranks.ranks_of(mesh, "k")
known.agree("k", [("argument 0", "float32[3]")])
try:
    known.agree("k", [("argument 0", f"float32[{rank}]")])
except kd.errors_mesh.RanksDiffer as error:
    said["agree"] = str(error)
ranks.WAIT = 0.5
if rank == 0:
    try:
        known.agree("k", [])
    except kd.errors_mesh.RanksApart as error:
        said["late"] = str(error)
dist.barrier()
pickle.dump(said, open(sys.argv[3], "wb"))
if rank == 1:
    os._exit(0)  # without a word to the others
try:
    kd.library.all_reduce(x, group)
except kd.errors_mesh.RanksApart as error:
    said["apart"] = str(error)
pickle.dump(said, open(sys.argv[3], "wb"))
os._exit(0)
"""


def started(folder: str, rank: int) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-c", RANK, str(rank), f"{folder}/store", f"{folder}/said{rank}"]
    return subprocess.Popen(command, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def test_two_processes() -> None:
    with tempfile.TemporaryDirectory() as folder:
        processes = [started(folder, rank) for rank in range(2)]
        output = [process.communicate(timeout=120)[0] for process in processes]
        assert all(process.returncode == 0 for process in processes), output
        said: list[dict[str, Any]] = [pickle.loads(Path(folder, f"said{rank}").read_bytes()) for rank in range(2)]
    for one in said:
        assert (one["sum"] == 3).all() and np.array_equal(one["by mesh"], [1, 1, 1, 2, 2, 2])
        assert "rank 0 has float32[10], rank 1 float32[11]" in one["differ"]
        assert "rank 0 has float32[0], rank 1 float32[1]" in one["agree"]
    assert "rank 1 has not made it within 0.5 s" in said[0]["late"]
    assert "on rank 0 of 2: the exchange with the other ranks failed, and rank 1 has not come to it" in said[0]["apart"]


def test_a_group_without_this_process() -> None:
    """What `new_group` of torch gives to processes that are not in the group."""
    import torch.distributed as dist

    nobody: Any = dist.GroupMember.NON_GROUP_MEMBER
    with pytest.raises(BadArgumentType, match="a process group without this process"):
        kd.library.all_reduce(np.ones(4, np.float32), nobody)


@pytest.mark.parametrize("example", ["21_all_reduce", "22_tensor_parallel_mlp", "23_ring_attention"])
@pytest.mark.slow
def test_examples_under_torchrun(example: str) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        f"examples/{example}.py",
    ]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0 and "device 0" in done.stdout and "device 1" in done.stdout, done.stdout + done.stderr
