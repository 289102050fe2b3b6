"""Collectives with one process a GPU beside torch's own: symmetric memory's all-reduce, fused products, `all_to_all_single`.

    python -m benchmarks.collectives_ranks --seconds 450            # one process for each GPU of this host
    torchrun --nproc-per-node 2 -m benchmarks.collectives_ranks --rows all_reduce
    python -m benchmarks.collectives_ranks --dry --devices 2        # small arrays, gloo and the interpreter; no figures

A line of JSON a row. All calls of a row are checked against float64 first, and then take turns. A figure is the median of the
turns: microseconds a call between two events around several calls, on the rank that is last. `torch.ops.symm_mem` needs GPUs, so
the rehearsal gives these functions tensors without data, which checks their names, arguments and the shapes of their results,
and computes the results by gloo.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

os.environ.setdefault("NCCL_NVLS_ENABLE", "0")  # no NVLink multicast
os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
os.environ.setdefault("NVSHMEM_DISABLE_NVLS", "1")

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric_memory

import kernel_dsl as kd
from kernel_dsl import library

from .collectives import PRODUCTS

ONE_SHOT = (8, 32, 128, 512)  # KiB
TWO_SHOT = (16384, 65536, 262144, 4096)
SHARDS = (16384, 65536, 262144)  # of each GPU's part of a gather or scatter
TURNS, CALLS = 5, 20
BF16 = torch.bfloat16

Calls = dict[str, Callable[[], Any]]


class Ranks:
    """This process's rank, its arrays, and torch's functions of symmetric memory."""

    def __init__(self, dry: bool) -> None:
        self.dry = dry
        self.group: Any = dist.group.WORLD
        self.rank, self.n = dist.get_rank(), dist.get_world_size()
        self.device = torch.device("cpu") if dry else torch.device("cuda", torch.cuda.current_device())
        if dry:  # the one function that torch has no form without data of
            torch.library.impl("symm_mem::two_shot_all_reduce_", "Meta")(lambda x, operation, group: x)

    # --- arrays -----------------------------------------------------------------------------------

    def small(self, size: int, least: int) -> int:
        return least if self.dry else size

    def random(self, *shape: int, seed: int = 0, scale: float = 1.0) -> torch.Tensor:
        """bfloat16, different on each rank."""
        generator = torch.Generator(self.device).manual_seed(seed * self.n + self.rank)
        return (torch.randn(shape, generator=generator, device=self.device) * scale).to(BF16)

    def ours(self, *shape: int, like: torch.Tensor | None = None) -> torch.Tensor:
        """An array in symmetric memory for our functions, with the data of `like`."""
        made = kd.symmetric.empty(shape, "bfloat16", self.group, interpret=True if self.dry else None)
        return made if like is None else made.copy_(like)

    def theirs(self, like: torch.Tensor) -> torch.Tensor:
        """A copy in symmetric memory for torch's functions."""
        if self.dry:
            return like.clone()
        made = symmetric_memory.empty(like.shape, dtype=like.dtype, device=self.device)
        symmetric_memory.rendezvous(made, self.group.group_name)
        return made.copy_(like)

    # --- torch's functions ------------------------------------------------------------------------

    def symm(self, name: str, *args: Any, rehearsed: Callable[[], Any], **keywords: Any) -> Any:
        """A function of `torch.ops.symm_mem`. A rehearsal gives it tensors without data, and the result is `rehearsed()`."""
        function = getattr(torch.ops.symm_mem, name)
        if not self.dry:
            return function(*args, **keywords, group_name=self.group.group_name)
        empty = [_without_data(x) for x in args]
        shapes = _shapes(function(*empty, **keywords, group_name=self.group.group_name))
        result = rehearsed()
        assert _shapes(result) == shapes, (name, _shapes(result), shapes)
        return result

    def summed(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of all ranks' x, in float32 and rounded once, as torch's kernels do."""
        total = x.float()
        dist.all_reduce(total)
        return total.to(x.dtype)

    def gathered(self, x: torch.Tensor) -> torch.Tensor:
        every = x.new_empty((self.n * x.shape[0], *x.shape[1:]))
        dist.all_gather_into_tensor(every, x)
        return every

    def part(self, x: torch.Tensor) -> torch.Tensor:
        return x.chunk(self.n)[self.rank]

    def right(self, got: torch.Tensor, want: torch.Tensor, bound: float) -> bool:
        """Whether all ranks' results are within `bound` of the largest element."""
        error = (got.double() - want.double()).abs().max() / want.double().abs().max()
        worst = torch.tensor([float(error)], device=self.device)
        dist.all_reduce(worst, op=dist.ReduceOp.MAX)
        return float(worst) <= bound

    def exactly(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of all ranks' x in float64."""
        total = x.double()
        dist.all_reduce(total)
        return total


def _without_data(x: Any) -> Any:
    if isinstance(x, list):
        return [_without_data(y) for y in x]
    return torch.empty(x.shape, dtype=x.dtype, device="meta") if isinstance(x, torch.Tensor) else x


def _shapes(x: Any) -> Any:
    return [_shapes(y) for y in x] if isinstance(x, (list, tuple)) else tuple(x.shape)


# --- rows -----------------------------------------------------------------------------------------


def all_reduce(r: Ranks, kib: int) -> tuple[Calls, dict[str, bool]]:
    x = r.random(r.small(kib * 512, 64 * r.n))
    want, out = r.exactly(x), r.ours(*x.shape)
    mine, copy, there = r.ours(*x.shape, like=x), x.clone(), r.theirs(x)
    calls: Calls = {"ours": lambda: library.all_reduce(mine, r.group, out=out)}
    if kib <= ONE_SHOT[-1]:
        rehearsed = partial(r.summed, x)
        calls["one_shot"] = lambda: r.symm("one_shot_all_reduce", there, "sum", rehearsed=rehearsed)
    right = {who: r.right(call(), want, 2.0**-7) for who, call in calls.items()}
    rehearsed_here = lambda: there.copy_(r.summed(x))  # noqa: E731
    calls["two_shot"] = lambda: r.symm("two_shot_all_reduce_", there, "sum", rehearsed=rehearsed_here)
    right["two_shot"] = r.right(calls["two_shot"](), want, 2.0**-7)
    calls["nccl"] = lambda: dist.all_reduce(copy)
    return calls, right


def all_gather(r: Ranks, kib: int) -> tuple[Calls, dict[str, bool]]:
    x = r.random(r.small(kib * 512, 64))
    out, every = r.ours(r.n * x.numel()), x.new_empty(r.n * x.numel())
    mine = r.ours(*x.shape, like=x)
    calls: Calls = {
        "ours": lambda: library.all_gather(mine, r.group, out=out),
        "nccl": lambda: dist.all_gather_into_tensor(every, x),
    }
    return calls, {"ours": r.right(calls["ours"](), r.gathered(x), 0)}


def reduce_scatter(r: Ranks, kib: int) -> tuple[Calls, dict[str, bool]]:
    """`kib` is the size of a rank's result."""
    x = r.random(r.n * r.small(kib * 512, 64))
    out, part = r.ours(x.numel() // r.n), x.new_empty(x.numel() // r.n)
    mine = r.ours(*x.shape, like=x)
    calls: Calls = {
        "ours": lambda: library.reduce_scatter(mine, r.group, out=out),
        "nccl": lambda: dist.reduce_scatter_tensor(part, x),
    }
    return calls, {"ours": r.right(calls["ours"](), r.part(r.exactly(x)), 2.0**-7)}


def gathering_product(r: Ranks, sizes: tuple[int, int, int]) -> tuple[Calls, dict[str, bool]]:
    """M, N, K of each rank's product, where M are the rows of all. "alone" is that product without what is sent."""
    m, columns, depth = (128 * r.n, 64, 64) if r.dry else sizes
    x, w = r.random(m // r.n, depth, scale=depth**-0.25), r.random(depth, columns, seed=1, scale=depth**-0.25)
    whole, out, mine = r.gathered(x), x.new_empty(m, columns), r.ours(*x.shape, like=x)

    def nccl() -> Any:
        dist.all_gather_into_tensor(whole, x)
        return torch.mm(whole, w)

    calls: Calls = {
        "ours": lambda: library.all_gather_matmul(mine, w, r.group, out=out),
        "alone": lambda: torch.mm(whole, w),
        "nccl": nccl,
        "fused": lambda: r.symm(
            "fused_all_gather_matmul", x, [w], gather_dim=0, rehearsed=lambda: (r.gathered(x), [nccl()])
        )[1][0],
    }
    picked = torch.arange(0, m, max(m // 64, 1), device=r.device)
    want = whole[picked].double() @ w.double()
    return calls, {who: r.right(call()[picked], want, 2.0**-6) for who, call in calls.items()}


def scattering_product(r: Ranks, sizes: tuple[int, int, int]) -> tuple[Calls, dict[str, bool]]:
    """M, N, K of each rank's product, whose rows are shared among the ranks after the sum."""
    m, columns, depth = (128 * r.n, 64, 64) if r.dry else sizes
    x, w = r.random(m, depth, scale=depth**-0.25), r.random(depth, columns, seed=1, scale=depth**-0.25)
    part, out = x.new_empty(m // r.n, columns), r.ours(m // r.n, columns)

    def nccl() -> Any:
        dist.reduce_scatter_tensor(part, torch.mm(x, w))
        return part

    calls: Calls = {
        "ours": lambda: library.matmul_reduce_scatter(x, w, r.group, out=out),
        "nccl": nccl,
        "fused": lambda: r.symm("fused_matmul_reduce_scatter", x, w, "sum", scatter_dim=0, rehearsed=nccl),
    }
    picked = torch.arange(0, m // r.n, max(m // r.n // 64, 1), device=r.device)
    rows = torch.cat([picked + rank * (m // r.n) for rank in range(r.n)])
    want = r.part(r.exactly(x[rows].double() @ w.double()))
    right = {who: r.right(call()[picked], want, 2.0**-5) for who, call in calls.items()}
    calls["alone"] = lambda: torch.mm(x, w)
    return calls, right


def experts(r: Ranks) -> tuple[Calls, dict[str, bool]]:
    """Dispatch and combine of 4,096 tokens of 7,168 bfloat16 a rank to 8 of 256 experts.

    "all_to_all_single" sends the rows of each choice there and back, of numbers that all know. "torch" also gathers them in the
    order of experts, exchanges the numbers, and adds the results.
    """
    tokens, width, k, count = r.small(4096, 8), r.small(7168, 64), 8, 256
    x = r.random(tokens, width)
    ids = torch.rand(tokens, count, device=r.device).topk(k).indices.to(torch.int32)
    weights = torch.full((tokens, k), 1 / k, device=r.device)
    mine, chosen = r.ours(tokens, width, like=x), kd.symmetric.empty(
        (tokens, k), "int32", r.group, interpret=True if r.dry else None
    ).copy_(ids)  # fmt: skip
    received = r.ours(r.n * tokens * k, width)
    places, per_expert = torch.empty_like(ids), torch.empty(count // r.n, dtype=torch.int32, device=r.device)

    def ours() -> Any:
        room = (received, per_expert, places)
        library.expert_dispatch(mine, chosen, r.group, num_experts=count, out=room)
        return library.expert_combine(received, chosen, places, weights, r.group, num_experts=count)

    def numbers(flat: torch.Tensor) -> tuple[list[int], list[int]]:
        """How many rows go to each rank, and come from each."""
        send = torch.bincount(flat // (count // r.n), minlength=r.n)
        come = torch.empty_like(send)
        dist.all_to_all_single(come, send)
        return send.tolist(), come.tolist()

    def there_and_back(rows: torch.Tensor, send: list[int], come: list[int]) -> torch.Tensor:
        at_experts = rows.new_empty(sum(come), width)
        dist.all_to_all_single(at_experts, rows, come, send)
        back = torch.empty_like(rows)
        dist.all_to_all_single(back, at_experts, send, come)
        return back

    def theirs() -> torch.Tensor:
        flat = ids.reshape(-1)
        order = torch.argsort(flat)
        back = there_and_back(x[order // k], *numbers(flat))
        results = torch.empty_like(back).index_copy_(0, order, back).reshape(tokens, k, width)
        return (results * weights[:, :, None]).sum(1).to(x.dtype)

    known = numbers(ids.reshape(-1))
    rows = x.repeat_interleave(k, 0)
    calls: Calls = {"ours": ours, "torch": theirs}
    right = {who: r.right(call(), x, 2.0**-7) for who, call in calls.items()}
    calls["all_to_all_single"] = lambda: there_and_back(rows, *known)
    return calls, right


def cases() -> dict[str, Callable[[Ranks], tuple[Calls, dict[str, bool]]]]:
    """What makes each row, by its name; the most important ones first."""
    made: dict[str, Any] = {f"all_reduce_{kib}_KiB": partial(all_reduce, kib=kib) for kib in TWO_SHOT}
    for name, product in (("all_gather_matmul", gathering_product), ("matmul_reduce_scatter", scattering_product)):
        for sizes in PRODUCTS[name]:
            made[f"{name}_{'x'.join(map(str, sizes))}"] = partial(product, sizes=sizes)
    made["experts_4096x7168"] = experts
    made |= {f"all_reduce_{kib}_KiB": partial(all_reduce, kib=kib) for kib in ONE_SHOT}
    for kib in SHARDS:
        made[f"all_gather_{kib}_KiB"] = partial(all_gather, kib=kib)
        made[f"reduce_scatter_{kib}_KiB"] = partial(reduce_scatter, kib=kib)
    return made


# --- measuring ------------------------------------------------------------------------------------


def timed(r: Ranks, call: Callable[[], Any]) -> float:
    """Microseconds a call, on the rank that is last."""
    dist.barrier()
    torch.cuda.synchronize()
    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    first.record()
    for _ in range(CALLS):
        call()
    last.record()
    last.synchronize()
    took = torch.tensor([first.elapsed_time(last) * 1e3 / CALLS], device=r.device)
    dist.all_reduce(took, op=dist.ReduceOp.MAX)
    return float(took)


def measured(r: Ranks, make: Callable[[Ranks], tuple[Calls, dict[str, bool]]]) -> dict[str, Any]:
    """A row's figures. In a rehearsal, each call is made once."""
    calls, right = make(r)
    row: dict[str, Any] = {"right": all(right.values())}
    if not row["right"]:
        row["wrong"] = [who for who, good in right.items() if not good]
    if r.dry:
        for call in calls.values():
            call()
        return row | {"calls": list(calls)}
    for call in calls.values():
        timed(r, call)
    turns = [{who: timed(r, call) for who, call in calls.items()} for _ in range(TURNS)]
    for who in calls:
        row[f"{who}_us"] = round(statistics.median(turn[who] for turn in turns), 2)
    row["spread"] = round(max(turn["ours"] for turn in turns) / min(turn["ours"] for turn in turns), 3)
    return row | {f"{who}_over_ours": round(row[f"{who}_us"] / row["ours_us"], 3) for who in calls if who != "ours"}


def run(rank: int, options: argparse.Namespace, port: int, devices: int) -> None:
    """The work of one process. `port`: where the ranks meet, if torchrun has not said it."""
    if port:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(devices))
    if not options.dry:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", rank)))
    dist.init_process_group("gloo" if options.dry else "nccl", timeout=timedelta(seconds=120))
    r, begun, failed = Ranks(options.dry), time.monotonic(), False
    for name, make in cases().items():
        late = torch.tensor([time.monotonic() - begun], device=r.device)
        dist.all_reduce(late, op=dist.ReduceOp.MAX)  # all ranks begin the same rows
        if options.rows not in name or float(late) > options.seconds:
            continue
        row: dict[str, Any] = {"row": name, "devices": r.n}
        try:
            row |= measured(r, make)
        except Exception as error:  # the other rows are worth their time
            row["error"] = f"{type(error).__name__}: {error}"[:500]
        failed |= not row.get("right", False)
        if r.rank == 0 or "error" in row:
            print(json.dumps(row), flush=True)
        if not options.dry:
            torch.cuda.empty_cache()
    dist.destroy_process_group()
    if failed:
        raise SystemExit(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="", help="only rows whose name holds this")
    parser.add_argument("--seconds", type=float, default=450.0, help="begin no row after this")
    parser.add_argument("--dry", action="store_true", help="rehearse on the CPU")
    parser.add_argument("--devices", type=int, default=2, help="with --dry: how many")
    options = parser.parse_args()
    if "RANK" in os.environ:  # torchrun
        run(int(os.environ["RANK"]), options, 0, 0)
        return
    devices = options.devices if options.dry else torch.cuda.device_count()
    if devices < 2:
        raise SystemExit("needs two GPUs that reach each other")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    try:
        torch.multiprocessing.spawn(run, (options, port, devices), nprocs=devices)
    except torch.multiprocessing.ProcessExitedException as error:  # its row says why
        raise SystemExit(error.exit_code) from None


if __name__ == "__main__":
    main()
