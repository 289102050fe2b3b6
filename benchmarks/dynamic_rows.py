"""Kernels for any sizes beside the specialised ones: `dynamic` of `benchmarks.matmul` and of `benchmarks.attention`.

A first call of these sizes runs one, and a call after other sizes runs the other. Launches alternate. "Of specialised" is the
speed of the kernel for any sizes relative to the other's; their results must have the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest import mock

import torch

import kernel_dsl as kd
from kernel_dsl.library.attention_forward.sizes import AttentionProblem
from kernel_dsl.library.attention_forward.split import small_config, split_plan
from kernel_dsl.library.first_sizes import FirstSizes
from kernel_dsl.library.product_routes.routes import route
from kernel_dsl.library.products.arguments import request
from kernel_dsl.library.products.matmul_options import MatmulOptions
from kernel_dsl.library.products.plan import plan_by
from kernel_dsl.stages import target_named

from .harness import interleaved

Run = Callable[[], Any]
SHORT, MORE = 100e-6, 8  # seconds of a run that has so many times the rounds, as its times spread by percents
# (batch, M, N, K), dtype, options
PRODUCTS: list[tuple[tuple[int, int, int, int], Any, dict[str, Any]]] = [
    *(((1, *shape), torch.bfloat16, {}) for shape in ((4096, 4096, 4096), (8192, 8192, 8192), (1000, 4096, 4096))),
    *(((1, *shape), torch.bfloat16, {}) for shape in ((16, 16384, 8192), (128, 8192, 8192), (8192, 8192, 512))),
    ((1, 4096, 4096, 4096), torch.bfloat16, {"bias": True}),
    ((1, 4096, 4096, 4096), torch.float8_e4m3fn, {}),
    ((1, 2048, 2048, 2048), torch.float32, {}),
    ((1, 2048, 2048, 2048), torch.float32, {"precision": "tf32x3"}),
    ((16, 1024, 1024, 1024), torch.bfloat16, {}),
    ((256, 512, 128, 512), torch.bfloat16, {}),
    *((shape, torch.bfloat16, {}) for shape in ((4, 100, 512, 1024), (32, 100, 128, 512))),  # a batch of one wave
    *(((1, M, N, 1024), torch.bfloat16, {}) for N in (512, 2048, 4096) for M in (100, 200, 500)),
    *(((1, M, 512, 8192), torch.bfloat16, {}) for M in (100, 200, 500)),
    ((1, 300, 1536, 4096), torch.bfloat16, {}),
    *(((1, *shape), torch.float32, {}) for shape in ((100, 512, 2048), (500, 1024, 1024))),
]
# (batch, heads, kv_heads, queries, keys, dim) whose tiles share keys
FEW_QUERIES = [
    (1, 8, 1, 64, 8192, 128),
    (1, 8, 8, 128, 4096, 64),
    (1, 64, 8, 128, 16384, 128),
    (2, 16, 16, 300, 3000, 128),
    (1, 16, 16, 1024, 8192, 128),
    (1, 1, 1, 128, 16384, 64),
    (1, 8, 8, 100, 4000, 256),
]
# (keys of a page, batch, heads, kv_heads, queries, keys, dim), of keys in pages
PAGED = [
    *((page, 4, 16, 16, 512, 4096, dim) for page in (8, 16, 64) for dim in (64, 128)),
    (16, 4, 32, 8, 100, 8192, 128),
    (8, 32, 16, 16, 2000, 4096, 128),
]


def _row(name: str, runs: dict[str, Run], rounds: int, bits: bool = True) -> dict[str, Any]:
    """A row of two runs that give the same bits, or without `bits` nearly the same numbers."""
    results = [run() for run in runs.values()]
    pairs = zip(*(x if isinstance(x, tuple) else (x,) for x in results), strict=True)
    for one, other in pairs:
        if bits:
            assert torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8)), (
                f"{name}: other bits"
            )
        else:
            assert (one.float() - other.float()).norm() <= 1e-3 * one.float().norm(), f"{name}: other numbers"
    del results
    times = interleaved(runs, rounds)
    if times["dynamic"].median < SHORT:
        times = interleaved(runs, MORE * rounds)
    whole, any_size = (times[word].median for word in ("specialised", "dynamic"))
    return {
        "work": f"dynamic {name}",
        "us": f"{any_size * 1e6:.1f}",
        "specialised us": f"{whole * 1e6:.1f}",
        "of specialised": f"{whole / any_size:.3f}",
    }


def products(wants: Callable[[str], bool], rounds: int) -> Iterator[dict[str, Any]]:
    """A row for each product whose name is wanted."""
    machine = target_named(None)
    blocks = machine.limits.multiprocessors
    for (batch, M, N, K), dtype, given in PRODUCTS:
        words = " ".join(f"{word}={value}" for word, value in given.items())
        name = f"{str(dtype)[6:]} {batch}x{M}x{N}x{K} {words}".strip()
        if not wants(f"dynamic {name}"):
            continue
        outer = (batch,) if batch > 1 else ()
        a = torch.randn(*outer, M, K, device="cuda").to(dtype)
        b = torch.randn(*outer, N, K, device="cuda").to(dtype).transpose(-1, -2)
        extra = [torch.randn(N, device="cuda").to(dtype)] if "bias" in given else []
        asked = request(a, b, MatmulOptions(precision=given.get("precision"), bias=extra[0] if extra else None), None)
        found = route(asked.problem, asked.left, asked.right, asked.family, None, machine)
        runs: dict[str, Run] = {}
        for word, again in (("specialised", False), ("dynamic", True)):
            with mock.patch.object(FirstSizes, "comes_again", lambda *_, again=again: again):
                plan = plan_by(asked, found, blocks, chosen=False)
            runs[word] = lambda plan=plan, a=a, b=b, x=extra: plan.run(a, [b], list(x), None, None, None)
        yield _row(name, runs, rounds)


def attention(wants: Callable[[str], bool], rounds: int) -> Iterator[dict[str, Any]]:
    """A row for each problem whose name is wanted."""
    blocks = target_named(None).limits.multiprocessors
    shapes = ((1, 16, 16384, 128), (4, 16, 4096, 128), (1, 16, 16384, 64), (4, 16, 4096, 64), (4, 16, 1000, 128))
    cases: list[tuple[str, tuple[int, int, int, int, int, int], bool]] = [
        (f"B{batch} H{heads} S{length} d{dim}", (batch, heads, heads, length, length, dim), causal)
        for batch, heads, length, dim in (*shapes, (2, 8, 300, 128), (4, 16, 4096, 256))
        for causal in (False, True)
    ]
    for batch, heads, kv_heads, queries, keys, dim in FEW_QUERIES:
        name = f"B{batch} H{heads}/{kv_heads} {queries} queries {keys} keys d{dim}"
        cases.append((name, (batch, heads, kv_heads, queries, keys, dim), False))
    for what, sizes, causal in cases:
        name = f"{what} {'causal' if causal else 'full'}"
        if not wants(f"dynamic {name}"):
            continue
        batch, heads, kv_heads, queries, keys, dim = sizes
        p = AttentionProblem(*sizes, kd.bfloat16, causal, dim**-0.5, False)
        arrays = [_random(batch, *shape, dim) for shape in ((heads, queries), (kv_heads, keys), (kv_heads, keys))]
        make = partial(split_plan, p, small_config(p, blocks), blocks, False)
        yield _row(name, _both(lambda f=make, x=arrays: _call(f, x)), rounds)


def paged(wants: Callable[[str], bool], rounds: int) -> Iterator[dict[str, Any]]:
    """A row for each problem of keys in pages whose name is wanted; queries are the last of their sequence."""
    for page, batch, heads, kv_heads, queries, keys, dim in PAGED:
        name = f"pages of {page} B{batch} H{heads}/{kv_heads} {queries} queries {keys} keys d{dim}"
        if not wants(f"dynamic {name}"):
            continue
        pages = batch * keys // page
        q, kept = _random(batch, heads, queries, dim), [_random(pages, kv_heads, page, dim) for _ in range(2)]
        table = torch.randperm(pages, device="cuda").int().reshape(batch, keys // page)
        lengths = torch.full((batch,), keys, dtype=torch.int32, device="cuda")
        how = {"page_table": table, "kv_seqlens": lengths, "causal": "bottom_right"}

        def make(arrays: Any = (q, *kept), how: Any = how) -> Run:
            function = type(kd.library.attention)()
            return lambda: function(*arrays, **how)

        yield _row(name, _both(make), rounds)


def _both(make: Callable[[], Run]) -> dict[str, Run]:
    """Runs of a plan, or of a library function: `make` makes one of a new instance, which keeps the plan of its first call."""
    runs: dict[str, Run] = {}
    for word, again in (("specialised", False), ("dynamic", True)):
        with mock.patch.object(FirstSizes, "comes_again", lambda *_, again=again: again):
            runs[word] = make()
            runs[word]()
    return runs


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda").bfloat16()


def backward(wants: Callable[[str], bool], rounds: int) -> Iterator[dict[str, Any]]:
    """A row for each of attention's gradients whose name is wanted."""
    causal = {"causal": True}
    cases: list[tuple[tuple[int, ...], int, int, dict[str, Any]]] = [
        ((1, 16, 16), 16384, 128, {}), ((1, 16, 16), 16384, 128, causal), ((4, 16, 16), 4096, 128, causal),
        ((1, 32, 32), 16384, 64, causal), ((1, 8, 8), 16384, 256, {}), ((2, 8, 2), 1000, 128, causal),
        ((1, 16, 16), 16384, 128, causal | {"deterministic": True}), ((1, 64, 8), 8192, 64, causal | {"window": 1024}),
        ((1, 16, 16), 8192, 128, causal | {"softcap": 30.0}),
    ]  # fmt: skip
    shapes = [(outer, length, length, dim, given) for outer, length, dim, given in cases]
    shapes += [((1, 8, 8), 8192, 512, 64, {}), ((1, 16, 16), 1000, 77, 64, {})]
    for (batch, heads, kv_heads), queries, keys, dim, given in shapes:
        words = " ".join(f"{word}={value}" for word, value in given.items())
        length = f"S{queries}" if queries == keys else f"{queries} queries {keys} keys"
        name = f"backward B{batch} H{heads}/{kv_heads} {length} d{dim} {words}".strip()
        if not wants(f"dynamic {name}"):
            continue
        q, dout = (_random(batch, heads, queries, dim) for _ in range(2))
        k, v = (_random(batch, kv_heads, keys, dim) for _ in range(2))
        options = {word: value for word, value in given.items() if word != "deterministic"}
        out, lse = kd.library.attention(q, k, v, return_lse=True, **options)

        def make(arrays: Any = (dout, q, k, v, out, lse), given: Any = given) -> Run:
            function = type(kd.library.attention_backward)()
            return lambda: function(*arrays, **given)

        yield _row(name, _both(make), rounds, bits=False)


def rows(wants: Callable[[str], bool], rounds: int) -> Iterator[dict[str, Any]]:
    """A row for each grouped product and cross-entropy whose name is wanted."""
    for groups, count, N, K in ((8, 32768, 4096, 7168), (16, 32768, 768, 2048), (128, 65536, 1536, 2048)):
        name = f"{groups} groups {count}x{N}x{K}"
        if wants(f"dynamic {name}"):
            sizes = torch.full((groups,), count // groups, dtype=torch.int32, device="cuda")
            arrays = _random(count, K), _random(groups, K, N), sizes
            yield _row(name, _both(lambda a=arrays: _call(type(kd.library.grouped_matmul), a)), rounds)
        if wants(f"dynamic gradient of {name}"):
            sizes = torch.full((groups,), count // groups, dtype=torch.int32, device="cuda")
            arrays = _random(count, K), _random(count, N), sizes
            made = _both(lambda a=arrays: _call(type(kd.library.grouped_matmul_wgrad), a))
            yield _row(f"gradient of {name}", made, rounds)
    for M, H, V in ((4096, 4096, 32768), (8192, 2048, 50304)):
        name = f"cross-entropy {M}x{H}x{V}"
        if wants(f"dynamic {name}"):
            targets = torch.randint(0, V, (M,), device="cuda")
            arrays = _random(M, H) * 0.02, _random(V, H), targets
            yield _row(name, _both(lambda a=arrays: _call(type(kd.library.linear_cross_entropy), a)), rounds)


def _call(function: Callable[[], Any], arrays: Any) -> Run:
    """A run of the function that `function` makes."""
    own = function()
    return lambda: own(*arrays)
