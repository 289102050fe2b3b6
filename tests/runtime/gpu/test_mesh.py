"""Kernels on two GPUs of one process, with peer access. Each wait has a time-out: a hang ends with an error."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl import library

from .support import GPU

pytestmark = [*GPU, pytest.mark.several_gpus]
N = 4096
PAIR = kd.Mesh(("x",), (2,))
SPEC = kd.ShapeDtypeStruct((N,), kd.float32)
SECONDS = 10


@pytest.fixture(scope="module")
def torch() -> Any:
    module = pytest.importorskip("torch")
    if module.cuda.device_count() < 2:
        pytest.skip("torch sees one GPU")
    return module


def tensors(torch: Any, *shape: int, dtype: Any = None, seed: int = 0) -> list[Any]:
    """Different numbers on each GPU, that float32 adds without rounding."""
    rng = np.random.default_rng(seed)
    kind = dtype or torch.float32
    return [torch.tensor(rng.integers(-8, 8, shape).astype(np.float32)).to(kind).to(f"cuda:{i}") for i in range(2)]


@kd.kernel(out_type=(SPEC, SPEC), mesh=PAIR, scratch_types=[kd.SemaphoreType.REGULAR], name="exchange_on_two_gpus")
def exchange(x: Any, pulled: Any, pushed: Any, done: Any) -> None:
    peer = 1 - kd.axis_index("x")
    pulled[...] = kd.remote_ref(x, peer)[...]
    kd.remote_ref(pushed, peer)[...] = x[...] * 2
    kd.semaphore_signal_multicast(done, collective_axes="x")
    kd.semaphore_wait(done, 2, timeout=SECONDS)


def test_loads_stores_and_signals(torch: Any) -> None:
    for turn in range(20):
        xs = tensors(torch, N, seed=turn)
        pulled, pushed = exchange(xs)
        for rank in range(2):
            other = xs[1 - rank].cpu()
            assert pulled[rank].device == xs[rank].device
            assert torch.equal(pulled[rank].cpu(), other) and torch.equal(pushed[rank].cpu(), other * 2)


def test_work_before_and_after_on_the_streams(torch: Any) -> None:
    """A launch reads what each GPU's stream was about to write, and what follows sees all of it."""
    for turn in range(10):
        xs = tensors(torch, N, seed=turn)
        big = [torch.randn(4096, 4096, device=x.device) for x in xs]
        want = [x.cpu() + 1 for x in xs]
        for x, b in zip(xs, big, strict=True):
            b @ b  # a while
            x += 1
        pulled, _ = exchange(xs)
        after = [p + 1 for p in pulled]
        for rank in range(2):
            assert torch.equal(after[rank].cpu(), want[1 - rank] + 1)


def test_atomics_go_to_the_peer(torch: Any) -> None:
    @kd.kernel(
        out_type=kd.ShapeDtypeStruct((4,), kd.int32, init=0),
        mesh=PAIR,
        grid=(64,),
        scratch_types=[kd.SemaphoreType.REGULAR],
        name="count_on_the_first_gpu",
    )
    def count(x: Any, out: Any, done: Any) -> None:
        kd.atomic_add(kd.remote_ref(out, 0).at[1], 1, scope="sys")
        kd.semaphore_signal_multicast(done, collective_axes="x")
        kd.semaphore_wait(done, 2, timeout=SECONDS)

    out = count(tensors(torch, N))
    assert out[0].tolist() == [0, 128, 0, 0] and out[1].tolist() == [0, 0, 0, 0]


def test_symmetric_and_host_arrays(torch: Any) -> None:
    xs = kd.symmetric.empty((N,), kd.float32, PAIR)
    for rank in range(2):
        assert xs.local(rank).device.index == rank
        xs.local(rank).fill_(rank + 1)
    assert [p[0].item() for p in exchange(xs)[0]] == [2, 1]
    host = [np.full(N, 3, np.float32), np.full(N, 4, np.float32)]
    pulled, pushed = exchange(host)
    assert pulled[0][5] == 4 and pulled[1][5] == 3 and pushed[0][5] == 8 and pushed[1][5] == 6


@pytest.mark.parametrize("name", ["float32", "bfloat16", "int32"])
@pytest.mark.parametrize("shape", [(6,), (2, 4097), (512, 3000), (1 << 22,)])
def test_collectives(torch: Any, shape: tuple[int, ...], name: str) -> None:
    xs = tensors(torch, *shape, dtype=getattr(torch, name))
    want = xs[0].cpu().double() + xs[1].cpu().double()
    for algorithm in (None, "one-shot", "two-shot"):
        for got in library.all_reduce(xs, PAIR, algorithm=algorithm, timeout=SECONDS):
            assert torch.equal(got.cpu().double(), want)
    for got in library.all_gather(xs, PAIR, timeout=SECONDS):
        assert torch.equal(got.cpu(), torch.cat([x.cpu() for x in xs]))
    for rank, got in enumerate(library.reduce_scatter(xs, PAIR, timeout=SECONDS)):
        assert torch.equal(got.cpu().double(), want.chunk(2)[rank])


def test_all_to_all(torch: Any) -> None:
    xs = tensors(torch, 512, 7168, dtype=torch.bfloat16)
    for first, second in ((200, 300), (0, 512), (512, 0)):
        split = [[first, 512 - first], [second, 512 - second]]
        sizes = [torch.tensor(s, dtype=torch.int32, device=f"cuda:{r}") for r, s in enumerate(split)]
        received, counts = library.all_to_all(xs, sizes, PAIR, timeout=SECONDS)
        parts = [x.cpu().split(s) for x, s in zip(xs, split, strict=True)]
        for rank in range(2):
            want = torch.cat([parts[0][rank], parts[1][rank]])
            assert counts[rank].tolist() == [split[0][rank], split[1][rank]]
            assert torch.equal(received[rank][: len(want)].cpu(), want)
        back, _ = library.all_to_all(received, counts, PAIR, rows=512, timeout=SECONDS)
        assert all(torch.equal(b.cpu(), x.cpu()) for b, x in zip(back, xs, strict=True))


def test_two_ranks_on_one_gpu_are_refused(torch: Any) -> None:
    x = tensors(torch, N)[0]
    with pytest.raises(kd.Error, match="ranks 0 and 1 both have their arrays on cuda:0"):
        exchange([x, x.clone()])


def test_copies_by_tensor_maps_of_the_peers_arrays(torch: Any) -> None:
    """Pulled by TMA, pushed by TMA, added by TMA on both, and sent with semaphores."""
    tile = 64

    @kd.kernel(
        out_type=(kd.ShapeDtypeStruct((256, 256), kd.float32, init=0),) * 4,
        mesh=PAIR,
        grid=(4, 4),
        grid_names=("i", "j"),
        scratch_types={
            "smem": kd.SMEM((tile, tile), kd.float32),
            "bar": kd.Barrier(),
            "sem": kd.SemaphoreType.REGULAR((4,)),
        },
        name="copies_of_two_gpus",
    )
    def copies(x: Any, pulled: Any, pushed: Any, added: Any, sent: Any, smem: Any, bar: Any, sem: Any) -> None:
        peer = 1 - kd.axis_index("x")

        def mine(ref: Any) -> Any:
            return ref.at[kd.ds(kd.axis_index("i") * tile, tile), kd.ds(kd.axis_index("j") * tile, tile)]

        kd.semaphore_signal_multicast(sem.at[0], collective_axes="x")
        kd.semaphore_wait(sem.at[0], 2, timeout=SECONDS)
        kd.copy_gmem_to_smem(mine(kd.remote_ref(x, peer)), smem, bar)
        kd.barrier_wait(bar)
        mine(pulled)[...] = smem[...]
        kd.commit_smem()
        kd.copy_smem_to_gmem(smem, mine(kd.remote_ref(pushed, peer)))
        for device in range(2):
            kd.copy_smem_to_gmem(smem, mine(kd.remote_ref(added, device)), reduction_op="add")
        kd.wait_smem_to_gmem(0)
        kd.async_copy(mine(x), mine(sent), sem.at[1], sem.at[2], peer).wait(timeout=SECONDS)
        kd.semaphore_signal_multicast(sem.at[3], collective_axes="x")
        kd.semaphore_wait(sem.at[3], 2, timeout=SECONDS)

    for turn in range(50):
        xs = tensors(torch, 256, 256, seed=turn)
        here = [x.cpu() for x in xs]
        pulled, pushed, added, sent = copies(xs)
        for rank in range(2):
            other = here[1 - rank]
            assert torch.equal(pulled[rank].cpu(), other) and torch.equal(sent[rank].cpu(), other)
            assert torch.equal(pushed[rank].cpu(), here[rank])
            assert torch.equal(added[rank].cpu(), here[0] + here[1])


@pytest.mark.parametrize("name", ["all_gather_matmul", "matmul_reduce_scatter", "matmul_all_reduce"])
@pytest.mark.parametrize(
    "sizes", [(512, 384, 200), (2048, 1024, 1024), (1000, 520, 72)], ids=["small", "large", "not one kernel"]
)
def test_products_with_their_collectives(torch: Any, sizes: tuple[int, int, int], name: str) -> None:
    """Also many times, with delays."""
    rows, depth, columns = sizes
    rng = np.random.default_rng(0)
    xs = tensors(torch, rows // 2 if name == "all_gather_matmul" else rows, depth, dtype=torch.bfloat16)
    ws = tensors(torch, depth, columns, dtype=torch.bfloat16, seed=1)
    X, W = [[a.cpu().double() for a in arrays] for arrays in (xs, ws)]
    if name == "all_gather_matmul":
        wants = [torch.cat(X) @ w for w in W]
    else:
        total = X[0] @ W[0] + X[1] @ W[1]
        wants = list(total.chunk(2)) if name == "matmul_reduce_scatter" else [total, total]
    first: list[Any] = []
    for turn in range(50):
        for rank in range(2):
            if rng.random() < 0.5:
                with torch.cuda.device(rank):
                    torch.cuda._sleep(int(rng.integers(1, 400_000)))
        got = [g.cpu() for g in getattr(library, name)(xs, ws, PAIR, timeout=SECONDS)]
        if not turn:
            first = got
            for g, want in zip(got, wants, strict=True):
                assert ((g.double() - want).abs() <= 2.0**-6 * want.abs().max()).all()
        assert all(torch.equal(a, b) for a, b in zip(got, first, strict=True)), "the same bits each time"


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("length", "dim", "kind"), [(512, 64, "float16"), (1024, 128, "bfloat16"), (100, 40, "float32")]
)
def test_ring_attention(torch: Any, length: int, dim: int, kind: str, causal: bool) -> None:
    def random(seed: int, heads: int) -> list[Any]:
        rng = np.random.default_rng(seed)
        made = [torch.tensor(rng.standard_normal((2, heads, length, dim))) for _ in range(2)]
        return [m.to(getattr(torch, kind)).to(f"cuda:{rank}") for rank, m in enumerate(made)]

    q, k, v = random(0, 4), random(1, 2), random(2, 2)
    Q, K, V = (torch.cat([x.cpu().double() for x in xs], 2) for xs in (q, k, v))
    scores = Q @ K.repeat_interleave(2, 1).transpose(-1, -2) * dim**-0.5
    if causal:
        scores = scores.masked_fill(torch.ones(2 * length, 2 * length).triu(1).bool(), -float("inf"))
    want = (torch.softmax(scores, -1) @ V.repeat_interleave(2, 1)).chunk(2, 2)
    for _ in range(10):
        for got, part in zip(library.ring_attention(q, k, v, PAIR, causal=causal, timeout=SECONDS), want, strict=True):
            assert (got.cpu().double() - part).abs().max() <= (1e-5 if kind == "float32" else 2e-2)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("length", "dim", "kind"),
    [(512, 64, "float16"), (1024, 128, "bfloat16"), (100, 40, "bfloat16"), (130, 256, "float16"), (100, 40, "float32")],
)
def test_ring_attention_backward(torch: Any, length: int, dim: int, kind: str, causal: bool) -> None:
    def random(seed: int, heads: int) -> list[Any]:
        rng = np.random.default_rng(seed)
        made = [torch.tensor(rng.standard_normal((2, heads, length, dim))) for _ in range(2)]
        return [m.to(getattr(torch, kind)).to(f"cuda:{rank}") for rank, m in enumerate(made)]

    arrays = q, k, v, dout = random(0, 4), random(1, 2), random(2, 2), random(3, 4)
    Q, K, V, D = (torch.cat([x.cpu().double() for x in xs], 2).requires_grad_() for xs in arrays)
    scores = Q @ K.repeat_interleave(2, 1).transpose(-1, -2) * dim**-0.5
    if causal:
        scores = scores.masked_fill(torch.ones(2 * length, 2 * length).triu(1).bool(), -float("inf"))
    (torch.softmax(scores, -1) @ V.repeat_interleave(2, 1)).backward(D.detach())
    logs = torch.logsumexp(scores.detach(), -1).chunk(2, 2)
    first: list[Any] = []
    for _ in range(5):
        how: dict[str, Any] = {"causal": causal, "timeout": SECONDS}
        out, lse = library.ring_attention(q, k, v, PAIR, return_lse=True, **how)
        for got, want in zip(lse, logs, strict=True):
            assert (got.cpu().double() - want).abs().max() <= 1e-3
        grads = library.ring_attention_backward(dout, q, k, v, out, lse, PAIR, **how)
        for got, x in zip(grads, (Q, K, V), strict=True):
            bound = (1e-5 if kind == "float32" else 2e-2) * x.grad.abs().max()
            for g, want in zip(got, x.grad.chunk(2, 2), strict=True):
                assert (g.cpu().double() - want).abs().max() <= bound
        bits = [g.cpu() for row in grads for g in row]
        first = first or bits
        assert all(torch.equal(a, b) for a, b in zip(bits, first, strict=True)), "the same bits each time"


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("length", "dim", "kind"), [(1024, 128, "bfloat16"), (512, 64, "float16"), (100, 40, "float32")]
)
def test_autograd_of_ring_attention(torch: Any, length: int, dim: int, kind: str, causal: bool) -> None:
    """Lists of tensors of both GPUs: gradients lie where their tensors do, and are those of plain attention."""

    def random(seed: int, heads: int) -> list[Any]:
        rng = np.random.default_rng(seed)
        made = [torch.tensor(rng.standard_normal((1, heads, length, dim))) for _ in range(2)]
        return [m.to(getattr(torch, kind)).to(f"cuda:{rank}").requires_grad_() for rank, m in enumerate(made)]

    q, k, v, factors = random(0, 4), random(1, 2), random(2, 2), random(3, 4)
    Q, K, V = (torch.cat([x.detach().cpu().double() for x in xs], 2).requires_grad_() for xs in (q, k, v))
    scores = Q @ K.repeat_interleave(2, 1).transpose(-1, -2) * dim**-0.5
    if causal:
        scores = scores.masked_fill(torch.ones(2 * length, 2 * length).triu(1).bool(), -float("inf"))
    want = torch.softmax(scores, -1) @ V.repeat_interleave(2, 1)
    (want * torch.cat([f.detach().cpu().double() for f in factors], 2)).sum().backward()
    for turn in range(3):
        out, lse = library.ring_attention(q, k, v, PAIR, causal=causal, return_lse=True, timeout=SECONDS)
        assert [x.device.index for x in out] == [0, 1] and lse[1].requires_grad
        for x in (*q, *k, *v):
            x.grad = None
        if turn:  # each device's part of the graph
            torch.autograd.backward(list(out), [f.detach() for f in factors])
        else:
            sum((o * f.detach()).sum().to("cuda:0") for o, f in zip(out, factors, strict=True)).backward()
        for row, x in zip((q, k, v), (Q, K, V), strict=True):
            bound = (1e-5 if kind == "float32" else 2e-2) * x.grad.abs().max()
            for got, part in zip(row, x.grad.chunk(2, 2), strict=True):
                assert got.grad.device == got.device
                assert (got.grad.cpu().double() - part).abs().max() <= bound


def test_experts_there_and_back(torch: Any) -> None:
    for turn in range(10):
        rng = np.random.default_rng(turn)
        xs = tensors(torch, 512, 7168, dtype=torch.bfloat16, seed=turn)
        chosen = [np.argsort(rng.random((512, 32)), 1)[:, :8].astype(np.int32) for _ in range(2)]
        ids = [torch.tensor(c).to(f"cuda:{rank}") for rank, c in enumerate(chosen)]
        weights = [torch.full((512, 8), 0.125, device=f"cuda:{rank}") for rank in range(2)]
        received, counts, places = library.expert_dispatch(xs, ids, PAIR, num_experts=32, timeout=SECONDS)
        for rank in range(2):
            want = [x.cpu()[t] for e in range(rank * 16, rank * 16 + 16) for x, c in zip(xs, chosen, strict=True)
                    for t, _ in np.argwhere(c == e)]  # fmt: skip
            assert int(counts[rank].sum()) == len(want)
            assert torch.equal(received[rank][: len(want)].cpu(), torch.stack(want))
        back = library.expert_combine(received, ids, places, weights, PAIR, num_experts=32, timeout=SECONDS)
        assert all(torch.equal(b.cpu(), x.cpu()) for b, x in zip(back, xs, strict=True))


LATE = """
import torch
import kernel_dsl as kd

def body(x, out, arrived):
    kd.when(kd.axis_index("x") == 1)(lambda: kd.semaphore_wait(arrived, 3, timeout=0.5))
    out[...] = x[...]

spec = kd.ShapeDtypeStruct((64,), kd.float32)
scratch = {"arrived": kd.SemaphoreType.REGULAR}
late = kd.kernel(body, out_type=spec, mesh=kd.Mesh(("x",), (2,)), scratch_types=scratch, name="late")
late([torch.zeros(64, device=f"cuda:{i}") for i in range(2)])
torch.cuda.synchronize(1)
"""


def test_a_wait_that_lasts_too_long_ends_with_its_words(torch: Any) -> None:
    """In a process of its own: the trap ends the GPU's context."""
    done = subprocess.run([sys.executable, "-c", LATE], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode != 0
    wanted = "rank 1: kernel 'late' in block (0, 0, 0) waited for 0.5 s for 'arrived' to reach 3; it was 0"
    assert wanted in done.stderr, done.stderr[-3000:]
