"""The rows of `benchmarks.examples`: inputs, calls of the examples and of torch, and checks against float64."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as functional

import kernel_dsl as kd

DEVICE = "cuda"
Run = Callable[[], Any]


@dataclass
class Row:
    """One kernel at one size. `ours` writes into `outputs`, which are poisoned before `check` gives the relative error.

    `peers`: calls by name; torch's eager one is compiled too where `compiled`. `bytes`: what has to be read and written.
    `target`: of `against`, "torch" (the better of eager and compiled), "copy" or the name of a peer, in speed. `count`: of what
    is done, for the column of rates.
    """

    name: str
    ours: Run
    outputs: list[Any]
    check: Callable[[], float]
    bound: float
    peers: dict[str, Run]
    bytes: float
    target: float = 0.9
    against: str = "torch"
    compiled: bool = True
    count: float = 0.0
    extra: dict[str, Any] = field(default_factory=dict[str, Any])


def example(number: int) -> Any:
    """A module of examples/."""
    names = {
        35: "softmax_any_size",
        24: "dropout",
        25: "recurrence",
        26: "top_k",
        27: "radix_sort",
        28: "convolution",
        29: "group_norm",
        30: "fft",
        31: "int4_weights",
        32: "compaction",
        33: "cholesky",
        34: "scan",
    }
    return importlib.import_module(f"examples.{number}_{names[number]}")


def normal(*shape: int, dtype: Any = torch.float32) -> Any:
    return torch.randn(*shape, device=DEVICE).to(dtype)


def relative(got: Any, expected: Any) -> float:
    """The relative error; what was not written makes it NaN."""
    return float((got.double() - expected).norm() / expected.norm().clamp(min=1e-300))


def different(got: Any, expected: Any) -> float:
    """0 where all elements are equal, else the part that is not."""
    return float((got != expected).double().mean())


def some(rows: int) -> Any:
    """Numbers of rows to check, the first and the last among them."""
    return torch.unique(torch.linspace(0, rows - 1, 131, device=DEVICE).long())


def softmax(rows: int, columns: int) -> Row:
    x, out = (normal(rows, columns, dtype=torch.bfloat16) for _ in range(2))
    kernel, few = example(35).softmax_kernel(4096 if columns <= 4096 else 8192), some(rows)
    return Row(
        f"softmax any size {rows}x{columns}",
        lambda: kernel(x, out=out),
        [out],
        lambda: relative(out[few], x[few].double().softmax(-1)),
        4e-3,
        {"eager": lambda: torch.softmax(x, -1)},
        4.0 * x.numel(),
    )


def dropout(count: int) -> Row:
    x, out = (normal(count, dtype=torch.bfloat16) for _ in range(2))
    module, seed, first = example(24), 2**40 + 3, 2**18
    kernel = module.dropout_kernel(0.25)

    def check() -> float:
        keep = torch.from_numpy((module.philox(seed, first) >> np.uint64(8)).astype(np.float64) / 2**24 >= 0.25)
        kept = x.double() / 0.75
        every = torch.where(out == 0, 0.0, kept)  # zero or scaled, at the right rate, and where Philox says
        rate = float((out == 0).double().mean())
        assert abs(rate - 0.25) < 1e-3, f"a rate of {rate}"
        return max(relative(out, every), relative(out[:first], torch.where(keep.to(DEVICE), kept[:first], 0.0)))

    return Row(
        f"dropout bf16 {count}",
        lambda: kernel(x, np.uint64(seed), out=out),
        [out],
        check,
        4e-3,
        {"eager": lambda: functional.dropout(x, 0.25)},
        4.0 * count,
    )


def _scan_peers(combine: Any, pair: tuple[Any, Any]) -> dict[str, Run]:
    """torch's scan by a function, which is a prototype there: eager by slices, compiled by pointwise code."""
    from torch._higher_order_ops.associative_scan import associative_scan

    eager = lambda: associative_scan(combine, pair, 1, combine_mode="generic")  # noqa: E731
    pointwise = torch.compile(lambda a, b: associative_scan(combine, (a, b), 1, combine_mode="pointwise"))
    return {"eager": eager, "compile": lambda: pointwise(*pair)}


def recurrence(rows: int, columns: int, segmented: bool) -> Row:
    module = example(25)
    a = torch.rand(rows, columns, device=DEVICE)
    a = (a < 0.02).float() if segmented else a * 0.5 + 0.5
    b, out, few = normal(rows, columns), normal(rows, columns), some(rows)
    kernel = module.segmented_sums if segmented else module.recurrence

    def combine(one: Any, two: Any) -> Any:
        if segmented:
            return torch.maximum(one[0], two[0]), two[1] + torch.where(two[0] != 0, 0.0, one[1])
        return one[0] * two[0], one[1] * two[0] + two[1]

    def check() -> float:
        state, states = torch.zeros(len(few), device=DEVICE, dtype=torch.float64), []
        wide_a, wide_b = a[few].double(), b[few].double()
        for t in range(columns):
            factor = 1 - wide_a[:, t] if segmented else wide_a[:, t]
            state = factor * state + wide_b[:, t]
            states.append(state)
        return relative(out[few], torch.stack(states, 1))

    word = "segmented sums" if segmented else "linear recurrence"
    peers = _scan_peers(combine, (a, b))
    moved = 12.0 * a.numel()
    run = lambda: kernel(a, b, out=out)  # noqa: E731
    return Row(f"{word} {rows}x{columns}", run, [out], check, 1e-5, peers, moved, compiled=False)


def top_k(rows: int, columns: int, k: int) -> Row:
    module, x = example(26), normal(rows, columns)
    values, indices = normal(rows, k), torch.zeros(rows, k, device=DEVICE, dtype=torch.int32)
    pick, merge = module.part_kernel(k), module.merge_kernel(k)

    def check() -> float:
        wide = x.double().sort(dim=1, descending=True, stable=True)
        return different(values, wide.values[:, :k].float()) + different(indices.long(), wide.indices[:, :k])

    return Row(
        f"top {k} of {rows}x{columns}",
        lambda: merge(*pick(x), out=(values, indices)),
        [values, indices],
        check,
        0.0,
        {"eager": lambda: torch.topk(x, k, dim=1)},
        4.0 * x.numel(),
        target=3.0 if k == 64 else 0.9,
    )


def radix_sort(count: int) -> Row:
    """Beside torch's sort of int32, which also gives indices, and CUB's of the same keys by CuPy."""
    module = example(27)
    x = torch.randint(-(2**31), 2**31, (count,), device=DEVICE, dtype=torch.int64).to(torch.int32)
    keys, one, two = x.view(torch.uint32), torch.empty_like(x), torch.empty_like(x)
    buffers = [t.view(torch.uint32) for t in (one, two)]
    counting, step = module.count_kernel(), module.pass_kernel()
    words = torch.zeros((-(-count // (128 * 36)), module.DIGITS), device=DEVICE, dtype=torch.int32).view(torch.uint32)

    def ours() -> Any:
        counts, source = counting(keys), keys
        for number in range(module.PASSES):
            target = buffers[number % 2]
            step(source, counts, np.uint32(8 * number), out=(target, words))
            source = target
        return source

    def check() -> float:
        signed = torch.sort(x ^ -(2**31)).values ^ -(2**31)  # the order of uint32
        return different(two, signed)

    peers: dict[str, Run] = {"eager": lambda: torch.sort(x)}
    try:
        import cupy

        theirs = cupy.from_dlpack(x).view(cupy.uint32)
        peers["cub"] = lambda: cupy.sort(theirs)
    except ImportError:
        pass
    moved, against = 36.0 * count, "cub" if "cub" in peers else "torch"
    outputs = [one, two]
    return Row(
        f"radix sort u32 {count}", ours, outputs, check, 0.0, peers, moved, 0.6, against, compiled=False, count=count
    )


def convolution(batch: int, channels: int, times: int) -> Row:
    x, out = (normal(batch * channels, times, dtype=torch.bfloat16) for _ in range(2))
    w = normal(channels, 4, dtype=torch.bfloat16)
    all_w, kernel, images = w.repeat(batch, 1), example(28).convolution_kernel(), x.view(batch, channels, times)
    few = some(batch * channels)

    def check() -> float:
        padded = functional.pad(x[few].double(), (3, 0))
        taps = all_w[few].double()
        return relative(out[few], sum(taps[:, j : j + 1] * padded[:, j : j + times] for j in range(4)))

    def eager() -> Any:
        return functional.conv1d(images, w[:, None], padding=3, groups=channels)[..., :times]

    name = f"causal conv1d bf16 {batch}x{channels}x{times}"
    return Row(name, lambda: kernel(x, all_w, out=out), [out], check, 4e-3, {"eager": eager}, 4.0 * x.numel())


def group_norm(batch: int, channels: int, pixels: int) -> Row:
    x, out = (normal(batch, channels, pixels, dtype=torch.bfloat16) for _ in range(2))
    gamma, beta = (normal(channels, dtype=torch.bfloat16) for _ in range(2))
    kernel = example(29).group_norm_kernel(32)

    def check() -> float:
        expected = functional.group_norm(x[-2:].double(), 32, gamma.double(), beta.double(), 1e-5)
        return relative(out[-2:], expected)

    peers: dict[str, Run] = {"eager": lambda: functional.group_norm(x, 32, gamma, beta, 1e-5)}
    name = f"group norm bf16 {batch}x{channels}x{pixels}"
    return Row(name, lambda: kernel(x, gamma, beta, out=out), [out], check, 4e-3, peers, 4.0 * x.numel())


def fft(rows: int, size: int) -> Row:
    x, out = (normal(rows, size, 2) for _ in range(2))
    numbers, few, module = torch.view_as_complex(x), some(rows), example(30)

    def check() -> float:
        expected = torch.fft.fft(numbers[few].to(torch.complex128))
        return relative(out[few], torch.view_as_real(expected))

    peers: dict[str, Run] = {"eager": lambda: torch.fft.fft(numbers)}
    name = f"FFT c64 {rows}x{size}"
    return Row(name, lambda: module.fft(x, out=out), [out], check, 1e-6, peers, 8.0 * x.numel(), compiled=False)


def int4(M: int, N: int, K: int) -> Row:
    x, w, bias, out = (normal(*s, dtype=torch.bfloat16) for s in ((M, K), (K, N), (N,), (M, N)))
    packed, few = kd.library.pack_int4(w, zeros=True), some(M)
    plain = packed.unpacked(kd.bfloat16)
    peers: dict[str, Run] = {"eager": lambda: functional.silu(torch.addmm(bias, x, plain))}

    def check() -> float:
        return relative(out[few], functional.silu(x[few].double() @ plain.double() + bias.double()))

    run = lambda: example(31).linear(x, packed, bias, out=out)  # noqa: E731
    moved = N * K / 2 + N * K / 16 + 2.0 * (M * K + M * N)
    return Row(f"int4 linear {M}x{N}x{K}", run, [out], check, 8e-3, peers, moved)


def compaction(count: int) -> Row:
    module, x, out = example(32), normal(count), normal(count)
    total = torch.zeros((), device=DEVICE, dtype=torch.int32)
    starts = torch.zeros(-(-count // module.BLOCK), device=DEVICE, dtype=torch.int32)
    limit = np.float32(0.0)

    def ours() -> Any:
        module.starts_of(module.count_kept(x, limit), out=(starts, total))
        return module.gather_kept(x, limit, starts, out=out)

    def check() -> float:
        expected = x[x > 0]
        assert int(total) == len(expected), f"{int(total)} kept, not {len(expected)}"
        return different(out[: len(expected)], expected)

    peers: dict[str, Run] = {"eager": lambda: x[x > 0]}
    return Row(f"compaction f32 {count}", ours, [out, total], check, 0.0, peers, 6.0 * count, compiled=False)


def cholesky(batch: int) -> Row:
    half = normal(batch, 32, 32)
    a, out = half @ half.mT + 32 * torch.eye(32, device=DEVICE), normal(batch, 32, 32)
    kernel = example(33).cholesky
    check = lambda: relative(out, torch.linalg.cholesky(a.double()))  # noqa: E731
    peers: dict[str, Run] = {"eager": lambda: torch.linalg.cholesky(a)}
    return Row(f"Cholesky {batch}x32x32", lambda: kernel(a, out=out), [out], check, 1e-5, peers, 8.0 * a.numel())


def scan(count: int) -> Row:
    x, out = torch.rand(count, device=DEVICE), normal(count)
    kernel = example(34).scan_kernel()
    words = torch.zeros(-(-count // 8192), device=DEVICE, dtype=torch.int64).view(torch.uint64)
    peers: dict[str, Run] = {"eager": lambda: torch.cumsum(x, 0)}
    check = lambda: relative(out, x.double().cumsum(0))  # noqa: E731
    run = lambda: kernel(x, out=(out, words))  # noqa: E731
    return Row(f"prefix sum f32 {count}", run, [out], check, 1e-6, peers, 8.0 * count, 0.6, "copy", count=count)


def rows() -> Iterator[tuple[str, Callable[[], Row]]]:
    """(a word to choose it by, what makes the row) of all."""
    made: list[Any] = [partial(softmax, *s) for s in ((16384, 4096), (16384, 4000), (8192, 8192))]
    made += [partial(dropout, 2**26), *(partial(recurrence, 16384, 4096, word) for word in (False, True))]
    made += [partial(top_k, 64, 131072, 64), *(partial(top_k, 64, n, 256) for n in (65536, 131072, 262144))]
    made += [partial(radix_sort, 2**26), partial(radix_sort, 2**28), partial(convolution, 4, 2560, 4096)]
    made += [partial(group_norm, *s) for s in ((64, 256, 56 * 56), (64, 512, 28 * 28), (16, 512, 64 * 64))]
    made += [partial(fft, 16384, 4096), *(partial(int4, M, 16384, 8192) for M in (16, 64))]
    made += [partial(compaction, 50_000_000), partial(cholesky, 4096), partial(scan, 2**28)]
    for make in made:
        yield make.func.__name__, make
