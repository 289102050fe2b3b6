"""The kernels whose code is held: the suite's, the library's and the examples', at the shapes that are timed."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np

import kernel_dsl as kd
from kernel_dsl.library import AttentionBackwardConfig, AttentionConfig, MatmulConfig
from kernel_dsl.library.attention_forward.blocks import (
    blocks_kernel,
    lists_kernel,
    order_kernel,
    probe_kernel,
    table_kernel,
)
from kernel_dsl.library.attention_forward.norms import norms_kernel
from kernel_dsl.library.attention_forward.problem import ScoredProblem
from kernel_dsl.library.attention_forward.score import Score
from kernel_dsl.library.attention_forward.scored import widen_kernel
from kernel_dsl.library.attention_forward.split import combine_kernel as combine_shared
from kernel_dsl.library.product_kernels.combine import combine_kernel
from kernel_dsl.library.product_kernels.pack import Packing, pack_kernel
from kernel_dsl.library.products.complex_product import _parts_kernel
from kernel_dsl.library.products.problem import Problem
from kernel_dsl.stages import Stages
from tests.gate.launched import calls, mesh_calls
from tests.kernels import CASES, HOPPER

Struct = kd.ShapeDtypeStruct
bf16, f16, f32, f64, i8, i32 = kd.bfloat16, kd.float16, kd.float32, kd.float64, kd.int8, kd.int32
e4m3, e5m2 = kd.float8_e4m3fn, kd.float8_e5m2
GENERATIONS = ("sm_80", "sm_90a", "sm_100a")  # the suite's kernels are for all targets


@dataclass(frozen=True)
class Kernel:
    """What is compiled: `lower` takes the name of a target."""

    lower: Callable[[str], Stages]
    targets: tuple[str, ...]
    known: str = ""  # its name, where no trace is needed to find it

    @property
    def name(self) -> str:
        return self.known or self.lower(self.targets[0]).name


@cache
def kernels() -> dict[str, Kernel]:
    """All of them, by name. The library's and the examples' have a dot in their names."""
    found = {name: Kernel(case.lower, case.targets) for name, case in CASES.items()}
    for name, kernel in (*_matmuls(), *_attentions(), *launched(), *_examples()):
        if name in found:
            raise ValueError(f"two kernels are named {name}")
        found[name] = kernel
    return found


def _of(kernel: Any, *args: Any, targets: tuple[str, ...] = HOPPER, **options: Any) -> Kernel:
    """A kernel or a function of the library, with the arguments that it is lowered for."""
    return Kernel(lambda target: kernel.lower(*args, target=target, **options), targets)


def operand(rows: int, columns: int, dtype: Any, transposed: bool = False) -> Any:
    """A matrix that is described only, by columns where `transposed`: memory that is never touched."""
    return np.empty((columns, rows), dtype.numpy).T if transposed else Struct((rows, columns), dtype)


def launched() -> Iterator[tuple[str, Kernel]]:
    """The kernels of what launches several, as small calls launch them."""
    found: set[str] = set()
    for group, kernel, structs in (*calls(), *mesh_calls()):
        if kernel.name not in found:
            found.add(kernel.name)
            yield f"{group}.{kernel.name}", replace(_of(kernel, *structs), known=kernel.name)


# --- matmul ----------------------------------------------------------------------------------------

# the configurations of each form of the kernel: turns, clusters both ways, the transposed product, parts of a tile
ONE = MatmulConfig(tile_m=64, tile_n=64, stages=2, consumers=1)
FORMS = {
    "small": MatmulConfig(tile_m=128, tile_n=64, stages=2, epilogue_n=32),
    "turns": MatmulConfig(tile_m=128, tile_n=64, stages=3, ping_pong=True),
    "turns_cluster": MatmulConfig(tile_m=128, tile_n=64, stages=2, ping_pong=True, cluster=2),
    "along_n": replace(ONE, cluster_n=2, b_hint="evict_first"),
    "both_ways": replace(ONE, cluster=2, cluster_n=2, out_hint="evict_first"),
    "parts": MatmulConfig(tile_m=64, tile_n=96, stages=3, epilogue_n=32, epilogue_stages=1, ping_pong=True),
    "swapped": MatmulConfig(tile_m=128, tile_n=64, stages=2, cluster_n=2, epilogue_n=32, swapped=True),
    "swapped_cluster": replace(ONE, cluster=2, swapped=True, a_hint="evict_first"),
}
TRANSPOSES = {"nn": (False, False), "nt": (False, True), "tn": (True, False), "tt": (True, True)}
SQUARES = ((8192, 8192, 8192), (2048, 2048, 2048), (8192, 8192, 512))
THIN = ((128, 8192, 8192), (16, 16384, 8192), (4096, 32, 4096))


def gelu(x: Any) -> Any:
    """An epilogue that takes registers."""
    return 0.5 * x * (1.0 + kd.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))


def _product(M: int, N: int, K: int, a: Any, b: Any, form: str = "nt", **options: Any) -> Kernel:
    ta, tb = TRANSPOSES[form]
    targets = options.pop("targets", HOPPER)
    return _of(kd.library.matmul, operand(M, K, a, ta), operand(K, N, b, tb), targets=targets, **options)


def _matmuls() -> Iterator[tuple[str, Kernel]]:
    large = partial(_product, 4096, 4096, 4096)
    for form in TRANSPOSES:
        for shape in (*SQUARES, *THIN) if form in ("nn", "nt") else SQUARES[:1]:
            yield f"matmul.bf16.{form}.{'x'.join(map(str, shape))}", _product(*shape, bf16, bf16, form)
        yield f"matmul.f16.{form}", large(f16, f16, form)
    for word, config in FORMS.items():
        for form in ("nn", "tt"):
            yield f"matmul.bf16.{form}.{word}", _product(328, 200, 264, bf16, bf16, form, config=config)
    for a, b in ((e4m3, e4m3), (e5m2, e5m2), (e4m3, e5m2), (i8, i8), (kd.uint8, kd.uint8), (kd.uint8, i8)):
        yield f"matmul.{a}.{b}", large(a, b)
    for a, b, forms in ((i8, bf16, ("nn", "nt")), (i8, f16, ("nn",)), (bf16, i8, ("nt", "tt"))):
        for form in forms:  # bytes are contiguous along K
            yield f"matmul.mixed.{a}.{b}.{form}", large(a, b, form)
    yield "matmul.tf32", large(f32, f32, precision="tf32")
    yield "matmul.bf16.to_f32", large(bf16, bf16, out_dtype=f32)
    bias, c = Struct((4096,), f32), Struct((4096, 4096), bf16)
    yield "matmul.bf16.bias", large(bf16, bf16, bias=bias)
    yield "matmul.bf16.all_extras", large(bf16, bf16, bias=bias, c=c, activation=gelu, out_dtype=f32)
    yield "matmul.int8.bias", large(i8, i8, bias=bias, out_dtype=f32)
    for a, b in ((f32, f32), (f64, f64), (i32, i32), (kd.int64, i8), (i8, f32), (kd.bool_, kd.uint8)):
        yield f"matmul.general.{a}.{b}", _product(70, 50, 33, a, b, "tn", targets=GENERATIONS)
    for form in TRANSPOSES:  # rows that TMA can't address
        yield f"matmul.general.bf16.{form}", _product(70, 50, 33, bf16, bf16, form, targets=GENERATIONS)
    for a, b in ((bf16, bf16), (i8, i8), (i8, bf16)):  # GPUs without wgmma
        yield f"matmul.without_wgmma.{a}.{b}", _product(256, 256, 256, a, b, "nn", targets=("sm_80", "sm_120a"))
    yield from _beside_products()


def _beside_products() -> Iterator[tuple[str, Kernel]]:
    """What lays operands out anew, adds up parts of K, and scales by blocks of it."""
    rows = Struct((1000, 1000), bf16)
    for word, packing in (
        ("rows", Packing(1000, 1000, bf16, bf16, aligned=False)),
        ("turned", Packing(1000, 1000, i8, i8, turned=True)),
        ("split", Packing(1000, 1000, f32, f32, split=True)),
    ):
        yield (
            f"matmul.pack.{word}",
            _of(pack_kernel((packing,)), Struct((1000, 1000), packing.dtype), targets=GENERATIONS),
        )
    cut = Problem(1000, 1000, 64, bf16, bf16, bf16, accumulate=True, parts=4)
    yield "matmul.combine", _of(combine_kernel(cut), Struct((4, 1000, 1000), f32), rows, targets=GENERATIONS)
    for form in ("left", "right", "turned"):
        pairs = Struct((1000, 1000, 2), f32)
        yield f"matmul.complex.{form}", _of(_parts_kernel((), 1000, 1000, form), pairs, targets=GENERATIONS)
    a, b, scale = Struct((4096, 4096), e4m3), operand(4096, 4096, e4m3, True), Struct((4096, 32), f32)
    for word, factors in (("blocks", Struct((32, 32), f32)), ("columns", Struct((32, 4096), f32))):
        yield f"matmul.scaled.{word}", _of(kd.library.matmul, a, b, a_scale=scale, b_scale=factors)
    sides = operand(4096, 4096, bf16, True), operand(4096, 4096, bf16, True)
    yield "matmul.gated", _of(kd.library.matmul, Struct((4096, 4096), bf16), sides, gated="swiglu")
    yield "matmul.dropout", _of(kd.library.matmul, Struct((4096, 4096), bf16), sides[0], dropout=(0.1, 5), absmax=True)


# --- attention -------------------------------------------------------------------------------------


def _attention(length: int, dim: int, dtype: Any, heads: tuple[int, int] = (16, 16), **options: Any) -> Kernel:
    q, k = Struct((1, heads[0], length, dim), dtype), Struct((1, heads[1], length, dim), dtype)
    targets = options.pop("targets", HOPPER)
    return _of(kd.library.attention, q, k, k, targets=targets, **options)


def _gradients(
    number: int, length: int, dim: int, dtype: Any, heads: tuple[int, int] = (16, 16), **options: Any
) -> Kernel:
    """The kernel of that number of attention's backward."""
    q, k = Struct((1, heads[0], length, dim), dtype), Struct((1, heads[1], length, dim), dtype)
    arrays, targets = (q, q, k, k, q, Struct(q.shape[:3], f32)), options.pop("targets", HOPPER)
    return Kernel(
        lambda target: kd.library.attention_backward.lower(*arrays, target=target, **options)[number], targets
    )


def alibi(x: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    return x - (i - j) * ((h + 1) * 0.0625)


def documents(b: Any, h: Any, i: Any, j: Any) -> Any:
    return kd.div(i, 1024) == kd.div(j, 1024)


SCORED: tuple[tuple[str, int, dict[str, Any]], ...] = (
    ("80", 80, {}),
    ("window", 64, {"causal": True, "window": 1024}),
    ("bottom_right", 128, {"causal": "bottom_right", "sinks": Struct((16,), f32), "return_lse": True}),
    ("softcap", 128, {"causal": True, "softcap": 30.0}),
    ("bias", 128, {"bias": Struct((1, 1, 4090, 4090), bf16)}),
    ("alibi", 128, {"causal": True, "score_mod": alibi}),
    ("documents", 128, {"mask_mod": documents}),
)


def _attentions() -> Iterator[tuple[str, Kernel]]:
    for causal in (False, True):
        word = "causal" if causal else "full"
        for dim in (64, 128, 256):
            yield f"attention.{dim}.{word}", _attention(16384, dim, bf16, causal=causal)
        yield f"attention.128.{word}.lse", _attention(4096, 128, bf16, causal=causal, return_lse=True)
        yield f"attention.general.bf16.{word}", _attention(30, 40, bf16, causal=causal, targets=GENERATIONS)
    yield "attention.64.f16.grouped", _attention(1000, 64, f16, (16, 4), causal=True, scale=0.25)
    yield "attention.64.four_consumers", _attention(4096, 64, bf16, config=AttentionConfig(4, 64, 4))
    yield "attention.128.two_consumers", _attention(4096, 128, bf16, config=AttentionConfig(2, 128, 2))
    for word, dim, more in SCORED:
        yield f"attention.scored.{word}", _attention(4090, dim, bf16, (16, 4), **more)
    packed, starts = Struct((4090, 16, 128), bf16), Struct((9,), kd.int32)
    yield "attention.scored.ragged", _of(kd.library.attention, packed, packed, packed, q_seqlens=starts, causal=True)
    for word, dim, more in SCORED:
        if word != "bottom_right":
            yield f"attention.backward.scored.{word}", _gradients(1, 4090, dim, bf16, (16, 4), **more)
    few: dict[str, Any] = {"length": 500, "dim": 80, "dtype": bf16, "heads": (4, 2), "causal": True}
    extra = {"sinks": Struct((4,), f32), "bias": Struct((500, 500), bf16)}
    for number, word in enumerate(("stats", "scored", "sum_k", "sum_v", "finish", "dsinks", "dbias")):
        if word != "scored":
            yield f"attention.backward.scored.{word}", _gradients(**few | {"number": number}, **extra)
    yield "attention.backward.scored.wide", _gradients(1, 4090, 256, bf16, (16, 4), causal="bottom_right", window=1024)
    masked = ScoredProblem(1, 4, 2, 500, 500, 64, 64, bf16, bf16, 0.125, Score("top_left", mask_mod=documents))
    yield "attention.blocks", _of(blocks_kernel(masked, 128, 96, (False, False)), Struct((1,), bf16))
    yield "attention.lists", _of(lists_kernel(), Struct((1, 1, 4, 200), kd.int32))
    yield "attention.order", _of(order_kernel(), Struct((1, 1, 4), kd.int32))
    shared, logs = Struct((2, 12, 100, 64), bf16), Struct((2, 12, 100), f32)
    yield "attention.combine", _of(combine_shared(3, 4, 64, bf16, True), shared, logs)
    yield (
        "attention.scored.e4m3",
        _attention(4106, 128, kd.float8_e4m3fn, (16, 4), causal=True),
    )  # 2**28 scores and more
    heads = (Struct((1, count, 4106, 128), kd.float8_e4m3fn) for count in (16, 4))
    yield "attention.norms", _of(norms_kernel("bhsd", False, 16, 4, 128, kd.float8_e4m3fn), *heads)
    yield "attention.scored.e4m3_shared", _attention(16384, 128, kd.float8_e4m3fn, (16, 16))
    yield "attention.scored.e4m3_few", _attention(4090, 128, kd.float8_e4m3fn, (16, 4), causal=True)
    yield "attention.shared", _attention(2000, 64, bf16, (1, 1))
    yield "attention.mask_probe", _of(probe_kernel(masked))
    yield "attention.table", _of(table_kernel(150, 32000, 128), Struct((151,), kd.int32))
    yield (
        "attention.widen",
        _of(widen_kernel(4, 64, kd.float8_e4m3fn), Struct((2, 4, 100, 64), kd.float8_e4m3fn)),
    )
    yield "attention.general.f32", _attention(30, 40, f32, (4, 2), return_lse=True, targets=GENERATIONS)
    yield "attention.general.f64", _attention(30, 40, f64, causal=True)
    for dim, word, options in ((64, "full", {}), (128, "full", {}), (128, "causal", {"causal": True}), (256, "full", {}),
                               (192, "causal", {"causal": True}), (128, "in_turn", {"causal": True, "deterministic": True}),
                               (256, "in_turn", {"deterministic": True})):  # fmt: skip
        yield f"attention.backward.{dim}.{word}", _gradients(1, 16384, dim, bf16, **options)
    split = AttentionBackwardConfig(80, splits=3)
    for number, word in ((0, "stats"), (2, "sum"), (3, "finish")):
        yield f"attention.backward.{word}", _gradients(number, 1000, 128, bf16, (8, 2), config=split)
    yield "attention.backward.finish.wide", _gradients(2, 4096, 256, bf16)
    for number, word in enumerate(("q", "kv")):
        for dtype in (bf16, f64):
            made = _gradients(number, 30, 40, dtype, (4, 2), causal=True, targets=GENERATIONS)
            yield f"attention.backward.general.{word}.{dtype}", made


# --- examples --------------------------------------------------------------------------------------


def example(name: str) -> Any:
    """A module of examples/."""
    return importlib.import_module(f"examples.{name}")


def _examples() -> Iterator[tuple[str, Kernel]]:
    for name, kernel in (*_memory_bound(), *_norms(), *_products(), *_tutorials()):
        yield f"example.{name}", kernel


def _memory_bound() -> Iterator[tuple[str, Kernel]]:
    softmax, scans, sample = example("01_softmax"), example("06_prefix_sum"), example("07_grid_sample")
    square = Struct((16384, 16384), bf16)
    for shape in ((131072, 128), (16384, 4096), (8192, 8192), (4096, 32768)):
        yield f"softmax.{shape[1]}", _of(softmax.softmax_for(shape[1]), Struct(shape, bf16))
    yield "softmax.f32", _of(softmax.softmax_for(16384, f32), Struct((64, 16384), f32))
    yield "softmax.masked", _of(softmax.softmax_for(100, f32), Struct((37, 100), f32), targets=GENERATIONS)
    yield "all_reduce", _of(example("21_all_reduce").all_reduce, Struct((4096,), f32), targets=GENERATIONS)
    yield "gelu", _of(example("22_tensor_parallel_mlp").gelu, Struct((256, 64), bf16), targets=GENERATIONS)
    tuned = example("36_tune_matmul")
    yield (
        "tuned",
        _of(tuned.matmul._make(tuned.Config(64, 128, 32, 3)), *[Struct((200, 200), bf16)] * 2, targets=GENERATIONS),
    )
    long, turn = Struct((2**27,), f32), example("04_transpose").transpose_kernel
    yield "vector_add", _of(example("02_vector_add").vector_add, long, long, targets=GENERATIONS)
    for dtype in (bf16, f32):
        yield f"transpose.{dtype}", _of(turn(dtype.itemsize), Struct((16384, 16384), dtype))
    yield "transpose.masked", _of(turn(4), Struct((65, 130), i32), targets=GENERATIONS)
    counts = example("05_histogram").histogram_kernel()
    yield "histogram", _of(counts, Struct((2**28,), kd.uint8))
    yield "histogram.masked", _of(counts, Struct((20_000,), kd.uint8), targets=GENERATIONS)
    yield "row_cumsum", _of(scans.row_kernel_for(16384), square)
    yield "row_cumsum.masked", _of(scans.row_kernel_for(100), Struct((5, 100), f32), targets=GENERATIONS)
    for dtype in (f32, i32):
        whole, blocks = Struct((2**28,), dtype), Struct((2**16,), dtype)
        yield f"prefix_sum.blocks.{dtype}", _of(scans.block_sums(), whole)
        yield f"prefix_sum.running.{dtype}", _of(scans.running_sums(), blocks)
        yield f"prefix_sum.finish.{dtype}", _of(scans.finish(), whole, blocks)
    image, places, g = Struct((3, 256, 256), f32), Struct((65536, 2), f32), Struct((3, 65536), f32)
    yield "grid_sample", _of(sample.sample, image, places, targets=GENERATIONS)
    yield "grid_sample.backward", _of(sample.sample_backward, image, places, g, targets=GENERATIONS)
    experts, half = example("17_mixture_of_experts"), Struct((96, 48), f32)
    yield "experts.forward", _of(experts.swiglu_kernel(96, 48), half, half)
    yield "experts.backward", _of(experts.swiglu_backward_kernel(96, 48), half, half, half, Struct((96,), f32))
    yield "stencil", _of(example("08_stencil").spread, Struct((61, 150), f32), targets=GENERATIONS)
    yield "quantize", _of(example("09_quantize").quantize_kernel(), Struct((8192, 8192), bf16))
    for length in (2**28, 300_001):
        yield f"sum.{length}", _of(example("16_sum").span_sums(), Struct((length,), f32), targets=GENERATIONS)


def _norms() -> Iterator[tuple[str, Kernel]]:
    norms = example("03_layer_norm")
    for centred in (True, False):
        word = "layer_norm" if centred else "rms_norm"
        for shape in ((131072, 128), (16384, 4096), (8192, 8192), (4096, 32768)):
            x, parameters = Struct(shape, bf16), [Struct(shape[1:], bf16)] * (1 + centred)
            statistics = [Struct(shape[:1], f32)] * (1 + centred)
            yield f"{word}.{shape[1]}", _of(norms.forward_for(shape, centred), x, *parameters)
            kernel = norms.backward_for(shape, centred)
            yield f"{word}.backward.{shape[1]}", _of(kernel, x, x, parameters[0], *statistics)
        x, parameters = Struct((4096, 32768), bf16), [Struct((32768,), bf16)] * (1 + centred)
        yield f"{word}.stream", _of(norms.stream_kernel(centred, 1, 3, 66, 4), x, *parameters)
    parts = [Struct((132, 8192), f32)] * 2
    yield "layer_norm.column_sums", _of(norms.column_sums(bf16), *parts)


def _products() -> Iterator[tuple[str, Kernel]]:
    square, edges = [Struct((4096, 4096), bf16)] * 2, [Struct((200, 72), f16), Struct((72, 136), f16)]
    names = {"10_matmul_pipelined": HOPPER, "11_matmul_warp_specialized": HOPPER, "13_matmul_sm80": GENERATIONS}
    for name, targets in names.items():
        yield name[3:], _of(example(name).matmul, *square, targets=targets)
        yield f"{name[3:]}.edges", _of(example(name).matmul, *edges, targets=targets)


def _tutorials() -> Iterator[tuple[str, Kernel]]:
    """The examples from number 24 on, at small sizes: what is timed differs from them in how often it repeats."""
    column, square, u32 = Struct((5000,), f32), Struct((40, 300), f32), kd.uint32
    yield "softmax_any_size", _of(example("35_softmax_any_size").softmax_kernel(1024), square)
    yield "dropout", _of(example("24_dropout").dropout_kernel(0.25), column, np.uint64(7))
    yield "recurrence", _of(example("25_recurrence").recurrence, square, square)
    yield "segmented_sums", _of(example("25_recurrence").segmented_sums, square, square)
    best, found = example("26_top_k"), [Struct((4, 3, 16), dtype) for dtype in (f32, i32)]
    yield "top_k.parts", _of(best.part_kernel(16, 1024), Struct((4, 3000), f32))
    yield "top_k.merge", _of(best.merge_kernel(16), *found)
    radix, keys, counts = example("27_radix_sort"), Struct((5000,), u32), Struct((4, 256), u32)
    yield "radix_sort.count", _of(radix.count_kernel(), keys)
    yield "radix_sort.pass", _of(radix.pass_kernel(4), keys, counts, np.uint32(8))
    taps = Struct((13, 4), bf16)
    yield "convolution", _of(example("28_convolution").convolution_kernel(8, 128), Struct((13, 304), bf16), taps)
    channels = Struct((6,), f32)
    yield "group_norm", _of(example("29_group_norm").group_norm_kernel(2), Struct((2, 6, 700), f32), channels, channels)
    yield "fft", _of(example("30_fft").fft_kernel(8, 3), Struct((2, 512, 2), f32))
    compaction, starts = example("32_compaction"), Struct((2,), i32)
    yield "compaction.count", _of(compaction.count_kept, column, np.float32(0.5))
    yield "compaction.starts", _of(compaction.starts_of, starts)
    yield "compaction.gather", _of(compaction.gather_kept, column, np.float32(0.5), starts)
    yield "cholesky", _of(example("33_cholesky").cholesky, Struct((6, 32, 32), f32))
    yield "scan", _of(example("34_scan").scan_kernel(512, 128, 3), column)
