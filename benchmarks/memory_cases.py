"""The memory-bound kernels that `benchmarks.memory` times: their inputs, floors, peers, checks and tuning variants."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

import kernel_dsl as kd

softmaxes, adds, norms, transposes, histograms, scans, quantizers, sums = (
    importlib.import_module(f"examples.{name}")
    for name in (
        "01_softmax",
        "02_vector_add",
        "03_layer_norm",
        "04_transpose",
        "05_histogram",
        "06_prefix_sum",
        "09_quantize",
        "16_sum",
    )
)

NORM_SHAPES = [(8192, 8192), (16384, 4096), (4096, 32768), (131072, 128)]
BACKWARD_SHAPES = [(16384, 4096), (8192, 8192)]
COUNT = 2**28  # elements of the 1-D cases
SIDE = 16384  # of the square ones
MULTIPROCESSORS = 132


@dataclass
class Variant:
    """One way to do a case's work: `run` launches it into outputs that `outputs` gives; `kernels` show resources."""

    name: str
    run: Callable[[], Any]
    outputs: Callable[[], tuple[Any, ...]]
    lowered: Callable[[], list[Any]]


@dataclass
class Case:
    """One kernel at one shape. `bytes`: what it has to read and write; `target`: of the copy's bandwidth."""

    name: str
    bytes: int
    target: float
    variants: list[Variant]
    check: Callable[[tuple[Any, ...]], float]
    peer: Callable[[], Any]


def _poison(like: Any) -> Any:
    """An output full of what no right answer has."""
    if like.dtype.is_floating_point:
        return torch.full(like.shape, float("nan"), device="cuda").to(like.dtype)
    return torch.full(like.shape, 77, device="cuda", dtype=like.dtype)


def variant(name: str, kernel: Any, arguments: tuple[Any, ...], outputs: tuple[Any, ...]) -> Variant:
    """A variant of one launch."""
    given: Any = outputs if len(outputs) > 1 else outputs[0]
    return Variant(
        name,
        lambda: kernel(*arguments, out=given),
        lambda: outputs,
        lambda: [kernel.lower(*arguments, target="sm_90a").compile().resources],
    )


def error_of(got: Any, expected: Any, tolerance: float) -> float:
    """The relative error, asserted to be small; any NaN fails."""
    error = ((got.double() - expected).norm() / expected.norm().clamp(min=1e-300)).item()
    assert error <= tolerance, f"relative error {error:.1e} over {tolerance:.0e}"
    return error


def some(rows: int) -> Any:
    """Row numbers to check: the first and last ones, and others in between."""
    return torch.unique(torch.linspace(0, rows - 1, 517, device="cuda").long())


def softmax() -> Iterator[Case]:
    """bf16 softmax along the last axis."""
    for shape in NORM_SHAPES:
        x = torch.randn(shape, device="cuda").bfloat16()
        out = _poison(x)
        rows = some(shape[0])
        yield Case(
            f"softmax {shape[0]}x{shape[1]}",
            4 * x.numel(),
            0.9,
            [variant("default", softmaxes.softmax_for(shape[1]), (x,), (out,))],
            lambda o, x=x, r=rows: error_of(o[0][r], torch.softmax(x[r].double(), -1), 4e-3),
            lambda x=x: torch.softmax(x, -1),
        )


def vector_add() -> Iterator[Case]:
    """float32 addition: two arrays read, one written."""
    x, y = (torch.randn(COUNT // 2, device="cuda") for _ in range(2))
    out = _poison(x)
    yield Case(
        "vector add f32 2^27",
        12 * x.numel(),
        0.9,
        [variant("default", adds.vector_add, (x, y), (out,))],
        lambda o: error_of(o[0], (x + y).double(), 0.0),
        lambda: torch.add(x, y, out=out),
    )


def _forward_kernels(shape: tuple[int, int], centred: bool) -> list[tuple[str, Any]]:
    rows, stream = norms.rows_kernel, norms.stream_kernel
    wide = MULTIPROCESSORS
    others: dict[tuple[int, int], list[tuple[str, Any]]] = {
        (8192, 8192): [
            ("row early", rows(centred, 1, True)),
            ("stream 1x3", stream(centred, 1, 3, 2 * wide)),
            ("packed", norms.long_kernel(centred, 1, 72)),
            ("packed 2", norms.long_kernel(centred, 2, 64)),
        ],
        (16384, 4096): [
            ("row late", rows(centred, 1, False)),
            ("stream 1x3", stream(centred, 1, 3, 4 * wide)),
            ("packed", norms.long_kernel(centred, 1, 48)),
        ],
        (4096, 32768): [
            ("cluster 4", stream(centred, 1, 3, wide // 2, 4)),
            ("cluster 8", stream(centred, 1, 3, wide // 2, 8)),
            ("cluster 8x2", stream(centred, 1, 2, wide // 2, 8)),
            ("4 warpgroups", norms.long_kernel(centred, 4, 64)),
            ("2 warpgroups", norms.long_kernel(centred, 2, 112)),
        ],
        (131072, 128): [
            ("16 rows late", rows(centred, 16, False)),
            ("32 rows", rows(centred, 32)),
            ("8 rows", rows(centred, 8)),
            ("stream 64x3", stream(centred, 64, 3, 4 * wide)),
            ("stream 16x4", stream(centred, 16, 4, 12 * wide)),
        ],
    }
    return [("default", norms.forward_for(shape, centred)), *others[shape]]


def norm(centred: bool) -> Iterator[Case]:
    """bf16 layer norm or RMS norm, forward."""
    word = "layer" if centred else "rms"
    for shape in NORM_SHAPES:
        x = (torch.randn(shape, device="cuda") * 2 + 0.5).bfloat16()
        gamma, beta = (torch.randn(shape[1], device="cuda").bfloat16() for _ in range(2))
        parameters = (gamma, beta) if centred else (gamma,)
        row = torch.empty(shape[0], device="cuda")
        outputs = tuple(_poison(t) for t in ((x, row, row) if centred else (x, row)))
        rows = some(shape[0])

        def check(o: Any, x: Any = x, g: Any = gamma, b: Any = beta, r: Any = rows) -> float:
            wide = x[r].double()
            mean = wide.mean(-1, keepdim=True) * centred
            scale = ((wide - mean).square().mean(-1, keepdim=True) + 1e-5).rsqrt()
            error_of(o[-1][r], scale[:, 0], 1e-5)
            return error_of(o[0][r], (wide - mean) * scale * g.double() + b.double() * centred, 4e-3)

        def peer(x: Any = x, g: Any = gamma, b: Any = beta) -> Any:
            n = (x.shape[1],)
            return torch.nn.functional.layer_norm(x, n, g, b) if centred else torch.nn.functional.rms_norm(x, n, g)

        yield Case(
            f"{word} norm {shape[0]}x{shape[1]}",
            4 * x.numel() + 4 * shape[0] * (1 + centred),
            0.9,
            [variant(n, k, (x, *parameters), outputs) for n, k in _forward_kernels(shape, centred)],
            check,
            peer,
        )


def _backward(name: str, kernel: Any, arguments: tuple[Any, ...], centred: bool) -> Variant:
    """Both launches of a backward pass."""
    x, _, gamma, *_ = arguments
    dx, grads = _poison(x), tuple(_poison(gamma) for _ in range(1 + centred))
    specs = [kd.ShapeDtypeStruct(tuple(p.shape), kd.float32) for p in kernel(*arguments)[1:]]
    parts = tuple(torch.full(s.shape, float("nan"), device="cuda") for s in specs)
    add = norms.column_sums(kd.bfloat16)
    last: Any = grads

    def run() -> None:
        kernel(*arguments, out=(dx, *parts))
        add(*parts, out=last)

    return Variant(
        name,
        run,
        lambda: (dx, *grads),
        lambda: [
            kernel.lower(*arguments, target="sm_90a").compile().resources,
            add.lower(*parts, target="sm_90a").compile().resources,
        ],
    )


def norm_backward(centred: bool) -> Iterator[Case]:
    """bf16 layer norm or RMS norm, backward: x and the gradient of y read, that of x written."""
    word = "layer" if centred else "rms"
    wide = MULTIPROCESSORS
    for shape in BACKWARD_SHAPES:
        x, dy = (torch.randn(shape, device="cuda").bfloat16() for _ in range(2))
        gamma, beta = (torch.randn(shape[1], device="cuda").bfloat16() for _ in range(2))
        mean = x.float().mean(-1) * centred
        scale = ((x.float() - mean[:, None]).square().mean(-1) + 1e-5).rsqrt()
        statistics = (mean, scale) if centred else (scale,)
        rows = some(shape[0])

        def check(
            o: Any, x: Any = x, dy: Any = dy, g: Any = gamma, m: Any = mean, s: Any = scale, r: Any = rows
        ) -> float:
            normal = (x.double() - m.double()[:, None]) * s.double()[:, None]
            error_of(o[1], (dy.double() * normal).sum(0), 4e-3)
            if centred:
                error_of(o[2], dy.double().sum(0), 4e-3)
            normal, wanted = normal[r], dy[r].double() * g.double()
            along = (wanted * normal).mean(-1, keepdim=True)
            common = wanted.mean(-1, keepdim=True) * centred
            return error_of(o[0][r], (wanted - normal * along - common) * s[r].double()[:, None], 4e-3)

        leaves = [x.clone().requires_grad_(), gamma.clone().requires_grad_()]
        graph = [torch.nn.functional.rms_norm(leaves[0], (shape[1],), leaves[1], 1e-5), *leaves]

        def peer(
            x: Any = x, dy: Any = dy, g: Any = gamma, b: Any = beta, m: Any = mean, s: Any = scale, r: Any = graph
        ) -> Any:
            n = [x.shape[1]]
            if centred:
                ours = torch.ops.aten.native_layer_norm_backward
                return ours(dy, x, n, m[:, None], s[:, None], g, b, [True, True, True])
            return torch.autograd.grad(r[0], r[1:], dy, retain_graph=True)

        settings = [(2, 3, 2), (2, 2, 2), (4, 3, 1)] if shape[1] == 4096 else [(4, 3, 1), (4, 2, 1), (2, 3, 1)]
        kernels = [("default", norms.backward_for(shape, centred))]
        kernels += [(f"{w}wg x{s} {k}/SM", norms.backward_kernel(centred, w, s, k * wide)) for w, s, k in settings]
        yield Case(
            f"{word} norm backward {shape[0]}x{shape[1]}",
            6 * x.numel(),
            0.75,
            [_backward(n, k, (x, dy, gamma, *statistics), centred) for n, k in kernels],
            check,
            peer,
        )


def total() -> Iterator[Case]:
    """The sum of 2^28 float32."""
    x = torch.rand(COUNT, device="cuda")

    def made(name: str, piece: int, pieces: int) -> Variant:
        out: list[Any] = [_poison(x[:1])]

        def run() -> None:
            out[0] = sums.total(x, piece, pieces)

        kernel = sums.span_sums(piece, pieces)
        return Variant(name, run, lambda: tuple(out), lambda: [kernel.lower(x, target="sm_90a").compile().resources])

    settings = [(4096, 8), (2048, 16), (2048, 32), (4096, 16), (8192, 8)]
    yield Case(
        "sum f32 2^28",
        4 * x.numel(),
        0.9,
        [made("default", 4096, 8), *(made(f"{p}x{n}", p, n) for p, n in settings[1:])],
        lambda o: error_of(o[0], x.double().sum()[None], 1e-6),
        x.sum,
    )


def transpose() -> Iterator[Case]:
    """A transpose of 16384 x 16384, bf16."""
    x = torch.randn(SIDE, SIDE, device="cuda").bfloat16()
    out = _poison(x)
    sizes = [(128, 64), (64, 128), (128, 128)]
    kernels = [("default", transposes.transpose_kernel(2))]
    kernels += [(f"{r}x{c}", transposes.transpose_kernel(2, r, c)) for r, c in sizes]
    yield Case(
        "transpose bf16 16384^2",
        4 * x.numel(),
        0.9,
        [variant(n, k, (x,), (out,)) for n, k in kernels],
        lambda o: error_of(o[0], x.T.double(), 0.0),
        x.T.contiguous,
    )


def cumsum() -> Iterator[Case]:
    """Row sums of 16384 x 16384, bf16."""
    x = torch.rand(SIDE, SIDE, device="cuda").bfloat16()
    out = _poison(x)
    rows = some(SIDE)
    kernels = [("default", scans.row_kernel_for(SIDE))]
    kernels += [(n, scans.row_kernel(*a)) for n, a in scans.SETTINGS.items()]
    yield Case(
        "row cumsum bf16 16384^2",
        4 * x.numel(),
        0.8,
        [variant(n, k, (x,), (out,)) for n, k in kernels],
        lambda o: error_of(o[0][rows], x[rows].double().cumsum(-1), 4e-3),
        lambda: torch.cumsum(x, -1),
    )


def quantize() -> Iterator[Case]:
    """Groups of 128 of 8192 x 8192 bf16 to fp8."""
    x = torch.randn(SIDE // 2, SIDE // 2, device="cuda").bfloat16()
    out = torch.full(x.shape, float("nan"), device="cuda").to(torch.float8_e4m3fn)
    scales = torch.full((SIDE // 2, SIDE // 256), float("nan"), device="cuda")

    def check(o: Any) -> float:
        wide = x.double().reshape(SIDE // 2, -1, 128)
        exact = wide.abs().amax(-1) / 448
        error_of(o[1], exact, 1e-6)
        got = o[0].float().double().reshape(wide.shape)
        assert ((got - wide / exact[..., None]).abs() <= got.abs().clamp(min=2.0**-6) * 2.0**-4 * 1.001).all(), (
            "rounding"
        )
        return error_of(got * o[1][..., None].double(), wide, 4e-2)

    def peer() -> Any:
        groups = x.view(SIDE // 2, -1, 128)
        scale = groups.abs().amax(-1).float() / 448
        return (groups / scale[..., None]).to(torch.float8_e4m3fn), scale

    kernels = [("default", quantizers.quantize_kernel())]
    kernels += [(f"{g} groups", quantizers.quantize_kernel(g)) for g in (16, 24, 64)]
    yield Case(
        "quantize fp8 8192^2",
        3 * x.numel() + scales.numel() * 4,
        0.8,
        [variant(n, k, (x,), (out, scales)) for n, k in kernels],
        check,
        peer,
    )


def histogram() -> Iterator[Case]:
    """2^28 bytes to 256 bins. The floor is the copy's read rate, so each byte counts twice here."""
    x = torch.randint(0, 256, (COUNT,), device="cuda", dtype=torch.uint8)
    out = torch.full((256,), 77, device="cuda", dtype=torch.uint32)
    settings = [(4096, 32, 2), (2048, 32, 4), (4096, 16, 4), (4096, 64, 2)]
    kernels = [("default", histograms.histogram_kernel())]
    kernels += [(f"{p}x{n}x{w}", histograms.histogram_kernel(p, n, w)) for p, n, w in settings]
    yield Case(
        "histogram u8 2^28 (reads)",
        2 * x.numel(),
        0.5,
        [variant(n, k, (x,), (out,)) for n, k in kernels],
        lambda o: error_of(o[0].long(), torch.bincount(x, minlength=256).double(), 0.0),
        lambda: torch.bincount(x, minlength=256),
    )


CASES: dict[str, Callable[[], Iterator[Case]]] = {
    "softmax": softmax,
    "vector_add": vector_add,
    "layer_norm": lambda: norm(True),
    "rms_norm": lambda: norm(False),
    "layer_norm_backward": lambda: norm_backward(True),
    "rms_norm_backward": lambda: norm_backward(False),
    "sum": total,
    "transpose": transpose,
    "cumsum": cumsum,
    "quantize": quantize,
    "histogram": histogram,
}
