"""The library on a mesh with one process a GPU, checked and timed on GPUs.

`torchrun --nproc-per-node 2 -m tests.mesh.torchrun_check` checks results, errors and times beside torch's symmetric memory.
`torchrun --nproc-per-node 2 -m tests.mesh.torchrun_check --dies` ends rank 1 without a word: rank 0 must end with an error
that names a semaphore, within seconds. `--cpu` runs the checks in the interpreter, on small arrays. `--nvshmem` checks the
collectives of several hosts in NVSHMEM's memory, by torch's backend; all go by NVSHMEM's functions, as if nothing were mapped.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("NCCL_NVLS_ENABLE", "0")  # no NVLink multicast
os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
os.environ.setdefault("NVSHMEM_DISABLE_NVLS", "1")

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory

import kernel_dsl as kd
from kernel_dsl.errors_mesh import NotSymmetric, RanksDiffer

KIB = 1 << 10


class Check:
    """This rank's checks."""

    def __init__(self, cpu: bool, iterations: int) -> None:
        self.cpu, self.iterations = cpu, iterations
        self.group = dist.group.WORLD
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.device = torch.device("cpu") if cpu else torch.device("cuda", self.rank)
        self.failed = 0
        self.semaphore = False

    def say(self, text: str) -> None:
        if self.rank == 0:
            print(text, flush=True)

    def made(self, *shape: int, seed: int, dtype: Any = torch.bfloat16) -> list[Any]:
        """Every rank's array, the same on all ranks; this rank's own is symmetric."""
        generator = torch.Generator().manual_seed(seed)
        every = [torch.randn(shape, generator=generator).to(dtype).to(self.device) for _ in range(self.size)]
        own = kd.symmetric.empty(shape, str(dtype).split(".")[-1], self.group, interpret=True if self.cpu else None)
        every[self.rank] = own.copy_(every[self.rank])
        return every

    def expect(self, name: str, got: Any, want: Any, bound: float) -> None:
        error = ((got.float() - want.float()).abs().max() / want.float().abs().max().clamp(min=1e-9)).item()
        if not error <= bound:
            self.failed += 1
            print(f"WRONG on rank {self.rank}: {name}: error {error:.2e}, at most {bound:.0e}", flush=True)

    def timed(self, call: Callable[[], Any], repeats: int = 50) -> float:
        """Microseconds of a call, the median over `repeats` after a few."""
        if self.cpu:
            call()
            return float("nan")
        for _ in range(5):
            call()
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(2 * repeats)]
        dist.barrier()
        torch.cuda.synchronize()
        for i in range(repeats):
            marks[2 * i].record()
            call()
            marks[2 * i + 1].record()
        torch.cuda.synchronize()
        times = sorted(marks[2 * i].elapsed_time(marks[2 * i + 1]) * 1e3 for i in range(repeats))
        return times[repeats // 2]

    def in_graph(self, call: Callable[[], Any], calls: int = 20) -> float:
        """Microseconds of a call in a graph of several, where no host is waited for."""
        side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        with torch.cuda.stream(side):
            call()
        self.meet()
        with torch.cuda.graph(graph, stream=side):
            for _ in range(calls):
                call()
        self.meet()
        return self.timed(graph.replay) / calls

    def meet(self) -> None:
        """All ranks' GPUs have come to this."""
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda.synchronize()

    def host(self, call: Callable[[], Any], repeats: int = 200) -> float:
        """Microseconds that the host is at a call."""
        for _ in range(10):
            call()
        self.meet()
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        return (time.perf_counter() - start) / repeats * 1e6

    def collectives(self) -> None:
        sizes = [64] if self.cpu else [4 * KIB, 32 * KIB, 256 * KIB, 2048 * KIB, 32 * KIB * KIB]  # elements
        for count in sizes:
            xs = self.made(count, seed=count)
            x, total = xs[self.rank], sum(x.float() for x in xs)
            out = torch.empty_like(x)
            there = kd.symmetric.empty((count,), "bfloat16", self.group, interpret=True if self.cpu else None)
            target = out if 2 * count <= 512 * KIB else there
            self.expect(f"all_reduce {count}", kd.library.all_reduce(x, self.group, out=target), total, 1e-2)
            wide = kd.symmetric.empty(
                (self.size * count,), "bfloat16", self.group, interpret=True if self.cpu else None
            )
            self.expect(f"all_gather {count}", kd.library.all_gather(x, self.group, out=wide), torch.cat(xs), 0)
            part = total[self.rank * (count // self.size) :][: count // self.size]
            small = torch.empty_like(part, dtype=x.dtype)
            self.expect(f"reduce_scatter {count}", kd.library.reduce_scatter(x, self.group, out=small), part, 1e-2)
            call = lambda x=x, target=target: kd.library.all_reduce(x, self.group, out=target)  # noqa: E731
            ours = self.timed(call)
            line = f"all_reduce {2 * count / KIB:8g} KiB: ours {ours:8.1f} us"
            if not self.cpu:
                name = self.group.group_name
                one = (
                    torch.ops.symm_mem.one_shot_all_reduce
                    if 2 * count <= 512 * KIB
                    else torch.ops.symm_mem.two_shot_all_reduce_
                )
                other = lambda x=x, one=one, name=name: one(x, "sum", name)  # noqa: E731
                theirs = self.timed(other)
                graphs = self.in_graph(call), self.in_graph(other)
                copy = x.clone()
                nccl = self.timed(lambda copy=copy: dist.all_reduce(copy))
                line += f", torch symmetric {theirs:8.1f}, NCCL {nccl:8.1f}, ratio {theirs / ours:.2f}"
                line += f"; in a graph {graphs[0]:.1f} and {graphs[1]:.1f}, ratio {graphs[1] / graphs[0]:.2f}"
                line += f"; host {self.host(call):.1f} and {self.host(other):.1f}"
            self.say(line)

    def products(self) -> None:
        m, depth, columns = (128, 16, 16) if self.cpu else (2048, 4096, 4096)
        xs, ws = self.made(m, depth, seed=1), self.made(depth, columns, seed=2)
        x, w = xs[self.rank], ws[self.rank]
        want = torch.cat(xs).float() @ w.float()
        self.expect("all_gather_matmul", kd.library.all_gather_matmul(x, w, self.group), want, 2e-2)
        rows = self.made(self.size * m, depth, seed=3)
        partial = sum(a.float() @ b.float() for a, b in zip(rows, ws, strict=True))
        mine = partial[self.rank * m :][:m]
        own = rows[self.rank]
        self.expect("matmul_reduce_scatter", kd.library.matmul_reduce_scatter(own, w, self.group), mine, 2e-2)
        self.expect("matmul_all_reduce", kd.library.matmul_all_reduce(own, w, self.group), partial, 2e-2)
        out = torch.empty_like(want, dtype=x.dtype)
        ours = self.timed(lambda: kd.library.all_gather_matmul(x, w, self.group, out=out))
        self.say(f"all_gather_matmul {self.size * m}x{columns}x{depth}: {ours:.1f} us")

    def attention(self) -> None:
        shape = (1, 2, 128, 64) if self.cpu else (1, 16, 4096, 128)
        qs, ks, vs = (self.made(*shape, seed=seed) for seed in (4, 5, 6))
        mine = (qs[self.rank], ks[self.rank], vs[self.rank])
        got, lse = kd.library.ring_attention(*mine, self.group, causal=True, return_lse=True)
        q, k, v = (torch.cat(x, 2).float().requires_grad_() for x in (qs, ks, vs))
        want = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        self.expect("ring_attention", got, want.detach().chunk(self.size, 2)[self.rank], 2e-2)
        douts = self.made(*shape, seed=8)
        want.backward(torch.cat(douts, 2).float())
        grads = kd.library.ring_attention_backward(douts[self.rank], *mine, got, lse, self.group, causal=True)
        for name, grad, x in zip("qkv", grads, (q, k, v), strict=True):
            self.expect(f"ring_attention_backward d{name}", grad, x.grad.chunk(self.size, 2)[self.rank], 4e-2)

    def delays(self) -> None:
        """Each function many times, with ranks that come at different times: the bits of the first call each time."""
        late = random.Random(self.rank)
        for name, call in self.each().items():
            want = [x.clone() for x in call()]
            wrong = sum(torch.zeros((), dtype=torch.int64, device=self.device) for _ in want)
            for _ in range(self.iterations):
                if late.random() < 0.3:
                    time.sleep(late.random() * 5e-4)
                elif late.random() < 0.5 and not self.cpu:
                    torch.cuda._sleep(late.randrange(1, 200_000))
                for got, expected in zip(call(), want, strict=True):
                    wrong += (got != expected).sum()
            if int(wrong):
                self.failed += 1
                print(f"WRONG on rank {self.rank}: {name} with delays: {int(wrong)} elements", flush=True)

    def each(self) -> dict[str, Callable[[], Any]]:
        """Calls of small arrays, whose results `collectives`, `products` and `attention` compare with what is right."""
        group, lib = self.group, kd.library
        how = {"timeout": 20}
        m, depth = (128, 16) if self.cpu else (128, 128)
        x = self.made(64, 1000, seed=9, dtype=torch.float32)[self.rank]
        rows = self.made(m, depth, seed=10)[self.rank]
        many = self.made(self.size * m, depth, seed=11)[self.rank]
        w = self.made(depth, 256, seed=12)[self.rank]
        q, k, v, dout = (self.made(1, 2, 128, 64, seed=seed)[self.rank] for seed in range(13, 17))
        out, lse = lib.ring_attention(q, k, v, group, causal=True, return_lse=True, **how)
        generator = torch.Generator().manual_seed(self.rank)
        chosen = torch.rand((128, 16), generator=generator).topk(4).indices.to(torch.int32)
        interpret = True if self.cpu else None
        ids = kd.symmetric.empty((128, 4), "int32", group, interpret=interpret).copy_(chosen)
        weights = torch.full((128, 4), 0.25, device=self.device)
        sizes = kd.symmetric.empty((self.size,), "int32", group, interpret=interpret).fill_(m // self.size - self.rank)
        there = torch.zeros(self.size * m, depth, dtype=rows.dtype, device=self.device), torch.zeros_like(sizes)

        def experts() -> Any:
            received, counts, places = lib.expert_dispatch(rows, ids, group, num_experts=16, **how)
            return lib.expert_combine(received, ids, places, weights, group, num_experts=16, **how), counts

        calls: dict[str, Callable[[], Any]] = {
            f"all_reduce {name}": lambda name=name: [lib.all_reduce(x, group, algorithm=name, **how)]
            for name in ("words", "one-shot", "two-shot")
        }
        calls |= {
            "all_gather": lambda: [lib.all_gather(x, group, **how)],
            "reduce_scatter": lambda: [lib.reduce_scatter(x, group, **how)],
            "all_to_all": lambda: lib.all_to_all(rows, sizes, group, out=there, **how),
            "experts": experts,
            "all_gather_matmul": lambda: [lib.all_gather_matmul(rows, w, group, **how)],
            "matmul_reduce_scatter": lambda: [lib.matmul_reduce_scatter(many, w, group, **how)],
            "matmul_all_reduce": lambda: [lib.matmul_all_reduce(many, w, group, **how)],
            "ring_attention": lambda: [lib.ring_attention(q, k, v, group, causal=True, **how)],
            "ring_attention_backward": lambda: lib.ring_attention_backward(
                dout, q, k, v, out, lse, group, causal=True, **how
            ),
        }
        return calls

    def errors(self) -> None:
        x = self.made(1024, seed=7)[self.rank]
        self.refused("shapes that differ", RanksDiffer, lambda: kd.library.all_reduce(x[: 512 + self.rank], self.group))
        if not self.cpu:
            plain = torch.ones(1000, device=self.device)
            self.refused("a plain tensor", NotSymmetric, lambda: kd.library.reduce_scatter(plain, self.group))
        self.expect(
            "a call after errors", kd.library.all_gather(x, self.group).float(), torch.cat(self.made(1024, seed=7)), 0
        )

    def refused(self, name: str, error: type[Exception], call: Callable[[], Any]) -> None:
        try:
            call()
            if not self.cpu:
                torch.cuda.synchronize()
        except error as found:
            self.say(f"{name}: {str(found).splitlines()[0]}")
        else:
            self.failed += 1
            print(f"WRONG on rank {self.rank}: {name} is no error", flush=True)

    def hosts(self) -> None:
        """Collectives between hosts, each of one GPU, whose memory the table of addresses has as not mapped."""
        switch_mapping_off(self.rank)
        mesh = kd.Mesh(("host",), (self.size,), self.group, hosts="host")
        for count in (self.size * 128, self.size * 40_000):
            xs = self.made(count, 3, seed=count, dtype=torch.float32)
            total, x = sum(xs), xs[self.rank]
            wants = {
                "all_gather": torch.cat(xs),
                "reduce_scatter": total.chunk(self.size)[self.rank],
                "all_reduce": total,
            }
            for name, want in wants.items():
                out = kd.symmetric.empty(tuple(want.shape), "float32", self.group)
                for _ in range(self.iterations // 10):
                    out.zero_()
                    getattr(kd.library, name)(x, mesh, out=out, timeout=20)
                    self.expect(f"{name} by NVSHMEM", out, want, 1e-6)

    def dies(self) -> None:
        """PyTorch finds the error first, in words of its own; the next call here says which rank and what was waited for."""
        x = self.made(4096, seed=8)[self.rank]
        wide = self.made(self.size * 128, 128, seed=8)[self.rank]
        kd.library.reduce_scatter(wide, self.group, timeout=3)
        kd.library.all_reduce(x, self.group, timeout=3)
        torch.cuda.synchronize()
        if self.rank == 1:
            os._exit(0)
        start, said = time.perf_counter(), ""
        call = (kd.library.all_reduce, kd.library.reduce_scatter)[self.semaphore]
        given, words = (x, "the words of rank 1") if not self.semaphore else (wide, "'begin' to reach 2; it was 1")
        try:
            call(given, self.group, timeout=3)
            torch.cuda.synchronize()
        except Exception as error:
            print(f"after {time.perf_counter() - start:.1f} s: {str(error).splitlines()[0]}", flush=True)
            try:
                call(given, self.group, timeout=3)
            except Exception as own:
                said = f"{type(own).__name__}: {own}"
        kernel = "reduce_scatter_2" if self.semaphore else "all_reduce_words_2"
        right = rf"rank 0: kernel '{kernel}' in block \(\d+, 0, 0\) waited for 3\.0 s for {words}"
        told = re.search(right, said) is not None
        print(said if told else f"WRONG: not {right!r} in: {said!r}", flush=True)
        os._exit(not told)


def switch_mapping_off(rank: int) -> None:
    """Let the tables of addresses say of all peers that their memory is not mapped."""
    from kernel_dsl.runtime.mesh import rank_cuda, ranks

    mapped = ranks.peers_of

    def alone(handle: Any, address: int) -> tuple[tuple[int, ...], int]:
        every, _ = mapped(handle, address)
        return tuple(where if peer == rank else 0 for peer, where in enumerate(every)), 0

    rank_cuda.peers_of = alone
    ranks.Ranks.maps_all = lambda own, arrays: False  # type: ignore[method-assign]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--dies", action="store_true")
    parser.add_argument("--semaphore", action="store_true", help="with --dies: in a kernel that waits for a semaphore")
    parser.add_argument("--nvshmem", action="store_true")
    parser.add_argument("--only", default="", help="a step")
    parser.add_argument("--iterations", type=int, default=1000)
    options = parser.parse_args()
    if not options.cpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("gloo" if options.cpu else "nccl")
    check = Check(options.cpu, 3 if options.cpu else options.iterations)
    check.semaphore = options.semaphore
    if options.dies:
        check.dies()
    steps = [check.collectives, check.products, check.attention, check.delays, check.errors]
    if options.nvshmem:
        torch.distributed._symmetric_memory.set_backend("NVSHMEM")
        steps = [check.hosts]
    for step in steps:
        if options.only not in step.__name__:
            continue
        step()
        check.say(f"{step.__name__}: done")
    dist.barrier()
    print(f"rank {check.rank}: {check.failed} wrong", flush=True)
    dist.destroy_process_group()
    raise SystemExit(bool(check.failed))


if __name__ == "__main__":
    main()
