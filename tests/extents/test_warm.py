"""Compiling ahead: in children, into the disk cache, with their errors as ours."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ml_dtypes import bfloat16 as bf16

import kernel_dsl as kd
from kernel_dsl import ahead, ahead_calls, body_trace, loading
from kernel_dsl.dims import settle_dims
from kernel_dsl.errors import BadArgumentType, ShapeMismatch
from kernel_dsl.errors_dims import WarmFailed
from kernel_dsl.runtime.build.cache import KernelCache
from kernel_dsl.runtime.disk_cache import DiskCache
from kernel_dsl.stages import target_named
from kernel_dsl.tree import flatten, unflatten

from .counting import none_before

Spec = kd.ShapeDtypeStruct


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A disk cache of its own, and nothing in the process's."""
    monkeypatch.setenv("KERNEL_DSL_CACHE", str(tmp_path))
    monkeypatch.setattr(loading, "kernel_cache", lambda: KernelCache(DiskCache(tmp_path)))
    return tmp_path


@kd.kernel(out_type=lambda x: x, grid=lambda x: (kd.cdiv(x.shape[0], 32),), shapes={"x": (kd.Dim("M"),)})
def double(x: Any, out: Any) -> None:
    part = kd.ds(kd.program_id(0) * 32, 32)
    out[part] = x[part] * 2


def entries(folder: Path) -> set[str]:
    return {str(p) for p in folder.rglob("*") if p.is_file() and p.stat().st_size > 1000}


def test_what_is_warm_is_found_on_disk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert kd.warm([(double, Spec((64,), kd.float32)), (double, (Spec((64,), kd.float16),))], jobs=2) == 2
    made = entries(folder)
    assert len(made) == 2 and double.specialisations() == []
    assert double.warm((Spec((9000,), kd.float32),), (Spec((8,), kd.float16),)) == 2
    assert double.warm(Spec((96,), kd.float32)) == 1
    assert entries(folder) == made  # of any size
    monkeypatch.setattr("kernel_dsl.runtime.assemble.assemble", lambda *_, **__: pytest.fail("it is there"))
    found = loading.assembled(double.lower(Spec((1000,), kd.float32)))
    assert found.cubin and found.kernel.arrays[0].shape == (1000,)


def test_the_error_of_a_child_is_ours(folder: Path) -> None:
    @kd.kernel(out_type=lambda x: x)
    def wrong(x: Any, out: Any) -> None:
        out[...] = x[...] + kd.zeros((3,), kd.float32)

    with pytest.raises(ShapeMismatch) as caught:
        kd.warm([(wrong, Spec((8,), kd.float32))])
    assert caught.value.loc.file == __file__ and "kd.zeros" in str(caught.value)
    assert entries(folder) == set()


class NoMode(Exception):
    """An exception of a user's, which pickle can't make again."""

    def __init__(self, mode: str, known: list[str]) -> None:
        super().__init__(f"{mode} is none of {known}")


@pytest.mark.parametrize("given", [ValueError("no such mode"), NoMode("x", ["y"]), KeyError("q"), SystemExit(3)])
def test_an_exception_of_a_body_is_the_users(folder: Path, given: BaseException) -> None:
    """Of a body, and of a function of shapes: as `lower` raises it, with the traceback that ends at the user's line."""

    @kd.kernel(out_type=lambda x: x)
    def raises(x: Any, out: Any) -> None:
        raise given

    def no_shape(x: Any) -> Any:
        raise given

    for kernel in (raises, kd.kernel(out_type=no_shape)(lambda x, out: None)):
        for call in (kernel.warm, lambda spec, k=kernel: kd.warm([(double, spec), (k, spec)])):
            with pytest.raises(BaseException) as caught:
                call(Spec((8,), kd.float32))
            assert caught.value is given and caught.traceback[-1].path == Path(__file__)


def test_an_exception_of_a_child_alone(folder: Path) -> None:
    here = os.getpid()

    def elsewhere() -> Any:
        if os.getpid() != here:
            raise ValueError("only in a child")

    with pytest.raises(WarmFailed, match=r"ValueError\('only in a child'\)"):
        ahead._compile([elsewhere], 1)  # pyright: ignore[reportPrivateUsage]


def test_a_child_that_dies(folder: Path) -> None:
    def end() -> Any:
        os._exit(7)

    with pytest.raises(WarmFailed, match="exit status 7"):
        ahead._compile([end], 1)  # pyright: ignore[reportPrivateUsage]
    assert entries(folder) == set()


def test_without_a_disk_cache_nothing_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNEL_DSL_CACHE", "off")
    assert kd.warm([(double, Spec((64,), kd.float32))]) == 0


M = kd.Dim("M", max=4096)
matmul = kd.library.matmul


@contextmanager
def never_traced() -> Iterator[None]:
    """On a stand-in for a GPU: what calls prepare is there already, found without a trace."""
    with pytest.MonkeyPatch.context() as patch, loading.compiling(target_named(None)):
        patch.setattr(body_trace, "_trace_once", lambda *_: pytest.fail("it is there"))
        yield


def prepared(call: Callable[[], Any]) -> int:
    """The number of kernels that a call prepares."""
    notes = ahead_calls.noted([call])
    for kernel, calls in notes:
        kernel._compile_for(calls)  # pyright: ignore[reportPrivateUsage]
    return len(notes)


def test_a_function_of_the_library_is_warm_for_each_value_of_a_dim(folder: Path) -> None:
    """Then no M makes a kernel, whatever the order."""
    rng, w = np.random.default_rng(0), Spec((512, 64), kd.bfloat16)
    with none_before():
        made = kd.warm([(matmul, Spec((M, 512), kd.bfloat16), w)], jobs=2)
        assert 2 <= made == len(entries(folder)) <= 8
        with never_traced():
            for m in (1, 4096, *(int(2**x) for x in rng.uniform(0, 12, 40))):
                x, y = np.zeros((m, 512), bf16), np.zeros((512, 64), bf16)
                assert prepared(lambda x=x, y=y: type(matmul)()(x, y)) >= 1


@pytest.mark.parametrize(("n", "k"), [(1024, 4096), (512, 8192), (4096, 4096)])
@pytest.mark.sampled(3)
def test_no_other_kernel_comes_after_all_sizes_are_warm(n: int, k: int) -> None:
    with none_before():
        found = ahead_calls.noted(ahead_calls.calls_of(matmul, (Spec((M, k), bf16), Spec((k, n), bf16))))
        made = {id(kernel) for kernel, _ in found}
        for m in (int(2**x) for x in np.random.default_rng(n).uniform(0, 12, 150)):
            x, y = np.zeros((m, k), bf16), np.zeros((k, n), bf16)
            assert {id(kernel) for kernel, _ in ahead_calls.noted([lambda x=x, y=y: matmul(x, y)])} <= made, m


def test_a_function_of_several_kernels_is_warm(folder: Path) -> None:
    def layer(x: Any, weight: Any, scale: float = 1.0) -> Any:
        return double(matmul(kd.library.rms_norm(x, weight[0]), weight, scale=scale).reshape(-1))

    x, weight = Spec((64, 64), kd.float32), Spec((64, 64), kd.float32)
    assert kd.warm([(partial(layer, scale=2.0), x, weight), (double, Spec((64,), kd.float32))]) == 4
    assert len(entries(folder)) == 3  # one does both calls of `double`
    with never_traced():
        zeros = np.zeros((64, 64), np.float32)
        assert prepared(lambda: matmul(zeros, zeros, scale=2.0)) == 1


library, bf, e4m3, f32, i32 = kd.library, kd.bfloat16, kd.float8_e4m3fn, kd.float32, kd.int32
N, P, T = kd.Dim("N", max=512), kd.Dim("P", max=64), kd.Dim("T", max=16)
B = kd.Dim("B", max=8)
HEADS = Spec((2, 4, M, 64), bf)
RAGGED = Spec((M, 4, 64), bf)
LENGTHS = Spec((5,), i32)
GROUPS = Spec((4,), i32)
MANY = {"gradients of a loss": 40}  # of three products
# what docs/extents.md lists
CALLS: dict[str, tuple[Any, ...]] = {
    "attention": (partial(library.attention, causal=True), HEADS, HEADS, HEADS),
    "attention in parts": (library.attention, Spec((1, 1, N, 128), bf), *[Spec((1, 1, M, 128), bf)] * 2),
    "a window": (partial(library.attention, causal=True, window=64, softcap=9.0), HEADS, HEADS, HEADS),
    "a mask": (partial(library.attention, mask_mod=lambda b, h, i, j: i - j < 99), HEADS, HEADS, HEADS),
    "ragged": (
        partial(library.attention, layout="bshd", causal=True, q_seqlens=LENGTHS, kv_seqlens=LENGTHS), *[RAGGED] * 3
    ),
    "pages": (
        partial(library.attention, page_table=Spec((2, T), i32), kv_seqlens=Spec((2,), i32)),
        HEADS, *[Spec((P, 4, 128, 64), bf)] * 2,
    ),
    "float8": (partial(library.attention, q_scale=0.5), *[Spec((2, 4, M, 64), e4m3)] * 3),
    "gradients": (
        partial(library.attention_backward, causal=True), *[Spec((B, 4, N, 64), bf)] * 5, Spec((B, 4, N), f32),
    ),
    "decoding": (
        library.decode_attention, Spec((B, 8, 1, 128), bf), *[Spec((B, 2, M, 128), bf)] * 2, Spec((B,), i32),
    ),
    "MLA": (
        partial(library.mla_decode, scale=0.1),
        Spec((B, 1, 16, 576), bf), Spec((P, 64, 576), bf), Spec((B,), i32), Spec((B, T), i32),
    ),
    "groups": (library.grouped_matmul, Spec((M, 64), bf), Spec((4, 64, 128), bf), GROUPS),
    "rows of groups": (
        partial(library.grouped_matmul, indices=Spec((N,), i32), scatter=Spec((N,), i32)),
        Spec((M, 64), bf), Spec((4, 64, 128), bf), GROUPS,
    ),
    "gradients of groups": (library.grouped_matmul_wgrad, Spec((M, 64), bf), Spec((M, 128), bf), GROUPS),
    "a loss": (library.linear_cross_entropy, Spec((M, 64), bf), Spec((256, 64), bf), Spec((M,), i32)),
    "gradients of a loss": (
        library.linear_cross_entropy_backward,
        Spec((), f32), Spec((M, 64), bf), Spec((256, 64), bf), Spec((M,), i32), Spec((M,), f32),
    ),
    "images": (library.conv2d, Spec((M, 8, 8, 64), bf), Spec((64, 1, 1, 64), bf)),
    "sizes of images": (partial(library.conv2d, padding=1), Spec((2, N, 16, 64), bf), Spec((64, 3, 3, 64), bf)),
    "gradients of images": (partial(library.conv2d_wgrad, kernel_size=1), *[Spec((N, 8, 8, 64), bf)] * 2),
    "a batch of products": (library.matmul, Spec((B, N, 64), bf), Spec((B, 64, 64), bf)),
    "a gate": (partial(library.matmul, gated="swiglu"), Spec((N, 64), bf), (Spec((64, 64), bf),) * 2),
    "a norm": (library.rms_norm, Spec((M, 64), bf), Spec((64,), bf)),
    "packing": (library.pack_int4, Spec((128 * 4, N), bf)),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.sampled(2)
def test_functions_run_on_zeros_of_no_memory(name: str) -> None:
    """They note few kernels of many sizes, and launch none. Calls of other sizes then have no other kernel."""
    function, *given = CALLS[name]
    leaves, structure = flatten((given, getattr(function, "keywords", {})))
    symbols = [n for x in leaves if isinstance(x, Spec) for n in x.shape if isinstance(n, kd.Dim)]
    rng = np.random.default_rng(len(name))
    with none_before():
        found = ahead_calls.noted(ahead_calls.calls_of(function, tuple(given)))
        assert 1 <= len(found) <= MANY.get(name, 12) and sum(len(calls) for _, calls in found) > 20
        made = {id(kernel) for kernel, _ in found}
        for _ in range(4):
            values = {n.name: int(2 ** rng.uniform(0, np.log2(n.hi))) for n in symbols}
            sized = [Spec(settle_dims(x.shape, values), x.dtype) if isinstance(x, Spec) else x for x in leaves]
            args, keywords = unflatten(structure, sized)
            call = partial(getattr(function, "func", function), **keywords)
            more = ahead_calls.noted(ahead_calls.calls_of(call, tuple(args)))
            assert {id(kernel) for kernel, _ in more} <= made, values


def test_values_of_dims_that_are_tried(folder: Path) -> None:
    n, b = kd.Dim("N", max=40, multiple_of=8), kd.Dim("B", max=3)
    assert ahead_calls.steps(n) == [8, 16, 24, 32, 40] and ahead_calls.steps(b) == [1, 2, 3]
    tried = ahead_calls.cases({"N": n, "B": b})
    assert len(tried) == 12 and {"N": 24, "B": 3} in tried and {"N": 8, "B": 2} in tried
    for a, b, words in (
        ((kd.Dim("K"), 8), (8, 8), "the Dim 'K' has no max"),
        ((kd.Dim("K", max=2**44), 8), (8, 8), "no room for zeros"),
        ((kd.Dim("K", max=8), 8), (8, kd.Dim("K", max=9)), "two extents are named 'K'"),
    ):
        with pytest.raises(BadArgumentType, match=words):
            kd.warm([(matmul, Spec(a, kd.float16), Spec(b, kd.float16))])


def test_what_can_not_be_warm(folder: Path) -> None:
    cuda = kd.cuda_kernel("k", ["a"], ["out"], "out[0] = a[0];")
    for work, word in (
        ([(3, Spec((8,), kd.float32))], "a function that calls kernels"),
        ([(lambda x: cuda(inputs=[x], output_shapes=[(1,)], output_dtypes=["f4"], grid=1, threadgroup=1), Spec((1,), "f4"))], "no kernel of Python"),
    ):  # fmt: skip
        with pytest.raises(BadArgumentType, match=word):
            kd.warm(work)
    with pytest.raises(ZeroDivisionError):
        kd.warm([(lambda x: 1 // 0, Spec((8,), kd.float32))])
    assert entries(folder) == set()
