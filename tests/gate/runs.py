"""What runs in the interpreter: the suite's kernels, the library's and the examples', on small seeded inputs."""

from __future__ import annotations

import contextlib
import functools
import io
import warnings
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np

import kernel_dsl as kd
from kernel_dsl.runtime import interpreter
from kernel_dsl.tree import flatten
from kernel_dsl.tuning_file import choose_anew
from tests.kernels import CASES

from .kernels import FORMS, TRANSPOSES, bf16, e4m3, e5m2, example, f16, f32, f64, gelu, i8, i32

Struct = kd.ShapeDtypeStruct
SCHEDULES = {
    "late": {"schedule": "late"},
    "eager": {"schedule": "eager"},
    **{f"random{seed}": {"schedule": "random", "seed": seed} for seed in range(4)},
}
BUDGET = 20_000  # instructions; the longest run takes some 8,000
# elements that nothing is stored to: the outputs start as zeros
PARTIAL = {"masked", "rows_by_index", "warp_by_warp"}
# rows that several indices name are stored more than once, each time with the same values
EQUAL = {"rows_by_index"}
# a wait for a signal that never comes, with a budget of its own: each step of it takes long
ENDLESS = {"semaphores": 500}
# small integers: sums of their products are exact, whatever the order
EXACT = {"small_dot", "tensor_cores", "matmul", "accumulator_from_a_value", "accumulator_scaled"}


@dataclass(frozen=True)
class Run:
    """`call` takes arrays like `specs` and `interpret=`. `exact`: inputs are small integers, and outputs are exact."""

    call: Callable[..., Any]
    specs: tuple[Any, ...]
    exact: bool = False
    wide: bool = False  # inputs are any bits
    partial: bool = False
    ignore: tuple[str, ...] = ()
    budget: int = BUDGET
    largest: float = 2.0  # of float inputs
    devices: int = 1  # each with inputs of its own

    def inputs(self) -> list[Any]:
        rows = [
            [_input(s, number + 100 * rank, self) if isinstance(s, Struct) else s for rank in range(self.devices)]
            for number, s in enumerate(self.specs)
        ]
        return rows if self.devices > 1 else [row[0] for row in rows]


@dataclass
class Result:
    """Outputs and steps of one run, or the hazard that ended it; and what the kernel printed."""

    outputs: tuple[np.ndarray, ...] = ()
    steps: int = 0
    hazard: str = ""
    printed: str = ""


# --- inputs ----------------------------------------------------------------------------------------


def bits(count: int, seed: int) -> np.ndarray:
    """Random 64-bit numbers, the same with every NumPy on every machine (splitmix64)."""
    x = np.arange(1, count + 1, dtype=np.uint64) + np.uint64(seed << 32)
    x *= np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    return x ^ (x >> np.uint64(31))


_SPECIAL = (0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -3e38, 0.5, -1.0, 1e9)


def _input(spec: Any, number: int, run: Run) -> np.ndarray:
    """Floats of 24 bits, integers below 40, any bytes, any of all where `wide`, or integers up to 3 for exact products."""
    raw, dtype = bits(spec.size, number), spec.dtype
    small = (raw >> np.uint64(20)).astype(np.int64) & 0xFFFFFF
    if run.exact:
        values = small % 4 if dtype.is_integer and not dtype.is_signed else small % 7 - 3
    elif dtype.is_float:
        values = (small * 2.0**-23 - 1) * run.largest
        if run.wide:
            values[number :: len(_SPECIAL)] = np.resize(_SPECIAL, values[number :: len(_SPECIAL)].shape)
    else:
        values = np.where(small % 2, raw.astype(np.int64), small % 9 - 4) if run.wide else small % 40
        values = small % 256 if dtype == kd.uint8 else values
    return values.astype(dtype.numpy).reshape(spec.shape)


# --- runs ------------------------------------------------------------------------------------------


def runs() -> dict[str, Run]:
    """All of them, by name."""
    found = {
        name: Run(
            case.kernel,
            case.specs,
            exact=name in EXACT,
            wide=name.startswith(("float32_", "int32_")),
            partial=name in PARTIAL,
            ignore=("equal_value_race",) if name in EQUAL else (),
            budget=ENDLESS.get(name, BUDGET),
            devices=case.kernel.mesh.size if hasattr(case.kernel, "mesh") else 1,
        )
        for name, case in CASES.items()
    }
    for name, run in (*_matmuls(), *_attentions(), *_examples()):
        if name in found:
            raise ValueError(f"two runs are named {name}")
        found[name] = run
    return found


@functools.cache
def results() -> dict[str, dict[str, Result]]:
    """What each run gives under each schedule."""
    return {name: {word: execute(run, params) for word, params in SCHEDULES.items()} for name, run in runs().items()}


def sampled_schedules(name: str) -> tuple[str, ...]:
    """The schedule of a run in the default run of the tests: a sixteenth of the runs has one, the others none."""
    part, number = divmod(zlib.crc32(name.encode()), 1 << 28)
    return (list(SCHEDULES)[number % len(SCHEDULES)],) if part == 15 else ()


@functools.cache
def sampled_results() -> dict[str, dict[str, Result]]:
    """What each run gives under its sampled schedules."""
    return {
        name: {word: execute(run, SCHEDULES[word]) for word in sampled_schedules(name)} for name, run in runs().items()
    }


def execute(run: Run, schedule: dict[str, Any]) -> Result:
    """Run once. Steps are those of all launches."""
    result, printed = Result(), io.StringIO()
    choose_anew()
    options: dict[str, Any] = {
        "interpret": kd.InterpretParams(step_budget=run.budget, report_unwritten=True, ignore=run.ignore, **schedule)
    }
    if run.partial:
        (only,) = run.call.lower(*run.specs).kernel.outputs
        options["out"] = np.zeros(only.shape, only.dtype.numpy)
    with counted() as steps, contextlib.redirect_stdout(printed), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # large values and conversions: their own tests look at them
        try:
            result.outputs = tuple(np.asarray(x) for x in flatten(run.call(*run.inputs(), **options))[0])
        except kd.HazardError as error:
            result.hazard = str(error)
    result.steps, result.printed = sum(steps), printed.getvalue()
    if not result.hazard and not result.steps:
        raise AssertionError("the interpreter ran without its steps being counted")
    return result


@contextlib.contextmanager
def counted() -> Iterator[list[int]]:
    """The steps of each run of the interpreter within, where it ends well."""
    steps: list[int] = []
    run = interpreter.run

    def counting(*args: Any, **keywords: Any) -> Any:
        report = run(*args, **keywords)
        steps.append(report.steps)
        return report

    with mock.patch.object(interpreter, "run", counting):
        yield steps


# --- the library -----------------------------------------------------------------------------------


def _product(M: int, N: int, K: int, a: Any, b: Any, form: str = "nt", *extra: Any, **options: Any) -> Run:
    ta, tb = TRANSPOSES[form]

    def call(x: Any, y: Any, *more: Any, interpret: Any) -> Any:
        named = dict(zip(("bias", "c"), more, strict=False))
        return kd.library.matmul(x.T if ta else x, y.T if tb else y, interpret=interpret, **named, **options)

    specs = (Struct((K, M) if ta else (M, K), a), Struct((N, K) if tb else (K, N), b), *extra)
    return Run(call, specs, exact="activation" not in options)


def _matmuls() -> Iterator[tuple[str, Run]]:
    for form in TRANSPOSES:
        yield f"matmul.bf16.{form}", _product(136, 72, 72, bf16, bf16, form)
    for word, config in FORMS.items():
        yield f"matmul.bf16.{word}", _product(136, 72, 72, bf16, bf16, "tt", config=config)
    for a, b in ((f16, f16), (e4m3, e4m3), (e5m2, e4m3), (i8, i8), (kd.uint8, kd.uint8), (i8, bf16), (bf16, i8)):
        yield f"matmul.{a}.{b}", _product(128, 64, 144, a, b)
    yield "matmul.tf32", _product(128, 64, 64, f32, f32, precision="tf32")
    bias, c = Struct((64,), f32), Struct((128, 64), f32)
    yield "matmul.bf16.extras", _product(128, 64, 64, bf16, bf16, "nt", bias, c, out_dtype=f32)
    yield "matmul.bf16.gelu", _product(128, 64, 64, bf16, bf16, "nt", bias, c, activation=gelu, out_dtype=f32)
    for dtype in (f32, f64, i32, bf16):
        yield f"matmul.general.{dtype}", _product(20, 18, 9, dtype, dtype, "tn")


def _attention(queries: int, keys: int, dim: int, dtype: Any, causal: bool) -> Run:
    call = functools.partial(kd.library.attention, causal=causal, return_lse=True)
    return Run(call, (Struct((1, 1, queries, dim), dtype), *[Struct((1, 1, keys, dim), dtype)] * 2))


def _gradients(queries: int, keys: int, dim: int, dtype: Any) -> Run:
    call = functools.partial(kd.library.attention_backward, causal=True, deterministic=True)
    q, k = Struct((1, 1, queries, dim), dtype), Struct((1, 1, keys, dim), dtype)
    return Run(call, (q, q, k, k, q, Struct((1, 1, queries), f32)))


def _attentions() -> Iterator[tuple[str, Run]]:
    for causal in (False, True):
        for dim in (64, 128, 256):
            keys = 130 if dim == 64 else 90  # two blocks of them
            yield f"attention.{dim}.{'causal' if causal else 'full'}", _attention(70, keys, dim, bf16, causal)
    for dtype in (f32, f64):
        yield f"attention.general.{dtype}", _attention(8, 20, 24, dtype, True)
    for dim, keys in ((64, 130), (128, 130), (256, 70)):
        yield f"attention.backward.{dim}", _gradients(40, keys, dim, bf16)
    yield "attention.backward.general", _gradients(8, 20, 24, f32)


# --- the examples ----------------------------------------------------------------------------------


def _examples() -> Iterator[tuple[str, Run]]:
    for name, kernel, specs in (*_memory_bound(), *_norms()):
        yield f"example.{name}", Run(kernel, specs, largest=1.2 if name.startswith("grid_sample") else 2.0)
    for name in ("10_matmul_pipelined", "11_matmul_warp_specialized", "13_matmul_sm80"):
        edges = Struct((136, 72), bf16), Struct((72, 72), bf16)
        yield f"example.{name[3:]}", Run(example(name).matmul, edges, exact=True)


def _memory_bound() -> Iterator[tuple[str, Any, tuple[Any, ...]]]:
    softmax, scans, sample = example("01_softmax"), example("06_prefix_sum"), example("07_grid_sample")
    for shape, dtype in (((37, 100), f32), ((3, 4096), bf16), ((2, 16384), bf16)):
        yield f"softmax.{shape[1]}", softmax.softmax_for(shape[1], dtype), (Struct(shape, dtype),)
    yield "vector_add", example("02_vector_add").vector_add, (Struct((2500,), f32),) * 2
    for shape, dtype in (((65, 130), f32), ((200, 96), bf16)):
        yield f"transpose.{dtype}", example("04_transpose").transpose_kernel(dtype.itemsize), (Struct(shape, dtype),)
    yield "histogram", example("05_histogram").histogram_kernel(2048, 2), (Struct((5000,), kd.uint8),)
    yield "row_cumsum", scans.row_kernel_for(1000), (Struct((3, 1000), f32),)
    for dtype in (f32, i32):
        yield f"prefix_sum.blocks.{dtype}", scans.block_sums(), (Struct((9000,), dtype),)
        yield f"prefix_sum.running.{dtype}", scans.running_sums(), (Struct((50,), dtype),)
        yield f"prefix_sum.finish.{dtype}", scans.finish(), (Struct((9000,), dtype), Struct((3,), dtype))
    image, places, g = Struct((3, 24, 37), f32), Struct((300, 2), f32), Struct((3, 300), f32)
    yield "grid_sample", sample.sample, (image, places)
    yield "grid_sample.backward", sample.sample_backward, (image, places, g)
    yield "stencil", example("08_stencil").spread, (Struct((21, 150), f32),)
    yield "quantize", example("09_quantize").quantize_kernel(), (Struct((9, 384), bf16),)
    yield "sum", example("16_sum").span_sums(1024, 4), (Struct((9001,), f32),)


def _norms() -> Iterator[tuple[str, Any, tuple[Any, ...]]]:
    norms = example("03_layer_norm")
    for centred in (True, False):
        word = "layer_norm" if centred else "rms_norm"
        for shape in ((9, 100), (3, 9001)):
            x, parameters = Struct(shape, f32), (Struct(shape[1:], f32),) * (1 + centred)
            statistics = (Struct(shape[:1], f32),) * (1 + centred)
            yield f"{word}.{shape[1]}", norms.forward_for(shape, centred), (x, *parameters)
            yield f"{word}.backward.{shape[1]}", norms.backward_for(shape, centred), (x, x, parameters[0], *statistics)
        x, parameters = Struct((12, 512), bf16), (Struct((512,), bf16),) * (1 + centred)
        yield f"{word}.stream", norms.stream_kernel(centred, 1, 2, 2, 2), (x, *parameters)
    yield "layer_norm.column_sums", norms.column_sums(bf16), (Struct((40, 70), f32),) * 2
