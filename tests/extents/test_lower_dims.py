"""`lower` of functions of the library, of structs with Dims: the kernel for any sizes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import kernel_dsl as kd
from kernel_dsl import ahead_calls
from kernel_dsl.errors import BadCallArgument
from kernel_dsl.library.first_sizes import Memory

from .counting import none_before

library, Spec, bf16, e4m3 = kd.library, kd.ShapeDtypeStruct, kd.bfloat16, kd.float8_e4m3fn
M, B = kd.Dim("M"), kd.Dim("B", max=32, multiple_of=2)  # typical sizes have more tiles than run at once


def queries(batch: Any, length: Any) -> Any:
    return Spec((batch, 4, length, 64), bf16)


def packed(length: Any) -> Any:
    return Spec((length, 32, 64), bf16)


def decoding(batch: Any, keys: Any) -> tuple[Any, ...]:
    cache = Spec((batch, 2, keys, 128), bf16)
    return Spec((batch, 8, 1, 128), bf16), cache, cache, Spec((batch,), kd.int32)


def near(b: Any, h: Any, i: Any, j: Any) -> Any:
    return abs(i - j) < 50


def by_batch(b: Any, h: Any, i: Any, j: Any) -> Any:
    return (i >= j) | (b == 1)


SIZES = (2, 999), (32, 1024)
STARTS = Spec((9,), kd.int32)  # of eight ragged sequences
# (the function, the arguments of sizes, two sizes: the second is the typical one)
CASES: dict[str, tuple[Any, Callable[..., tuple[Any, ...]], tuple[Any, Any], tuple[Any, Any]]] = {
    "matmul": (library.matmul, lambda _, m: (Spec((m, 512), bf16), Spec((512, 8192), bf16)), (1, 999), (1, 1024)),
    "a batch of products": (
        library.matmul,
        lambda b, m: (Spec((b, m, 64), kd.float32), Spec((b, 64, 256), kd.float32)),
        (6, 999),
        (32, 1024),
    ),
    "a product of rows that are copied": (
        library.matmul,
        lambda b, m: (Spec((b, m, 739), bf16), Spec((b, 739, 772), bf16)),
        (6, 999),
        (32, 1024),
    ),
    "attention": (partial(library.attention, causal=True), lambda b, n: (queries(b, n),) * 3, *SIZES),
    "decoding": (library.decode_attention, decoding, *SIZES),
    "a window": (partial(library.attention, causal=True, window=128), lambda b, n: (queries(b, n),) * 3, *SIZES),
    "a mask": (partial(library.attention, mask_mod=near), lambda b, n: (queries(b, n),) * 3, *SIZES),
    "a mask of each batch": (partial(library.attention, mask_mod=by_batch), lambda b, n: (queries(b, n),) * 3, *SIZES),
    "a cap and logarithms": (
        partial(library.attention, softcap=30.0, return_lse=True),
        lambda b, n: (queries(b, n),) * 3,
        *SIZES,
    ),
    "float8": (library.attention, lambda b, n: (Spec((b, 4, n, 64), e4m3),) * 3, (28, 999), SIZES[1]),
    "float32": (library.attention, lambda b, n: (Spec((b, 4, n, 64), kd.float32),) * 3, *SIZES),
    "ragged": (partial(library.attention, causal=True, q_seqlens=STARTS), lambda _, n: (packed(n),) * 3, *SIZES),
    "groups": (
        library.grouped_matmul,
        lambda _, m: (Spec((m, 64), bf16), Spec((4, 64, 256), bf16), Spec((4,), kd.int32)),
        *SIZES,
    ),
    "gradients of groups": (
        library.grouped_matmul_wgrad,
        lambda _, m: (Spec((m, 64), bf16), Spec((m, 256), bf16), Spec((4,), kd.int32)),
        *SIZES,
    ),
    "a loss": (
        library.linear_cross_entropy,
        lambda _, m: (Spec((m, 64), bf16), Spec((29_999, 64), bf16), Spec((m,), kd.int32)),
        *SIZES,
    ),
}
GRADIENTS: dict[str, Callable[..., Any]] = {
    "full": library.attention_backward,
    "causal": partial(library.attention_backward, causal=True),
    "a window": partial(library.attention_backward, causal=True, window=128),
    "a cap, in order": partial(library.attention_backward, softcap=30.0, deterministic=True),
    "a mask": partial(library.attention_backward, mask_mod=near),
    "ragged": partial(library.attention_backward, causal=True, q_seqlens=STARTS),
    "ragged, in order": partial(library.attention_backward, q_seqlens=STARTS, deterministic=True),
}
# beside the kernel that `lower` shows
OTHERS = ("combine", "cross_entropy", "norms", "widen", "blocks", "lists", "table")


def code(stages: Any) -> list[str]:
    """The LLVM text, which decides the PTX, without lines of the source."""
    return [line.partition(", !dbg ")[0] for line in stages.llvm.splitlines() if not line.startswith("!")]


def shapes_of(seen: Any) -> set[tuple[Any, ...]]:
    """The shapes of the arguments of noted calls."""
    return {tuple(getattr(x, "shape", ()) for x in args) for args, _ in seen}


def around(size: tuple[int, int], fewer: int = 2) -> list[tuple[int, int]]:
    """Three sizes, of which the first is this one, that have one choice of kernels."""
    batch, length = size
    return [size, (max(batch - fewer, 1), length - 8), (batch, length - 24)]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.sampled(2)
def test_lower_with_dims_gives_the_kernel_for_any_sizes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of calls of three sizes which come second, with one code, and it leaves no memory of sizes."""
    # kernels of decoding for the interpreter also check lengths
    monkeypatch.setattr("kernel_dsl.library.decoding.decode_attention.interpreted", lambda _: False)
    function, made, first, second = CASES[name]
    keywords = getattr(function, "keywords", {})
    plain = getattr(function, "func", function)
    with none_before():
        stages = plain.lower(*made(B if name != "matmul" else 1, M), **keywords)
        assert not any(memory.known for memory in Memory.all)
        sizes = first, *around(second, 0 if "product" in name else 2)  # a smaller batch of products has smaller tiles
        calls = [run for size in sizes for run in ahead_calls.calls_of(function, made(*size))]
        kernel, seen = next(
            n for n in reversed(ahead_calls.noted(calls)) if not any(word in n[0].name for word in OTHERS)
        )
    assert len(shapes_of(seen)) == 3
    assert all(code(stages) == code(kernel.lower(*args)) for args, _ in seen)
    assert code(stages) != code(plain.lower(*made(*second), **keywords))


def gradients(batch: Any, length: Any, ragged: bool = False) -> tuple[Any, ...]:
    if ragged:
        return *[packed(length)] * 5, Spec((32, length), kd.float32)
    return *[queries(batch, length)] * 5, Spec((batch, 4, length), kd.float32)


@pytest.mark.parametrize("name", GRADIENTS)
@pytest.mark.sampled(2)
def test_gradients_with_dims(name: str) -> None:
    """All kernels of calls of three sizes."""
    function = GRADIENTS[name]
    keywords = getattr(function, "keywords", {})
    ragged = "q_seqlens" in keywords
    with none_before():
        stages = library.attention_backward.lower(*gradients(B, M, ragged), **keywords)
        assert not any(memory.known for memory in Memory.all)
        calls = [
            run
            for size in (SIZES[0], *around(SIZES[1]))
            for run in ahead_calls.calls_of(function, gradients(*size, ragged))
        ]
        made = {
            "".join(code(kernel.lower(*args))): len(shapes_of(seen))
            for kernel, seen in ahead_calls.noted(calls)
            for args, _ in seen[-1:]
        }
    assert [made["".join(code(each))] for each in stages] == [3] * len(stages)


def test_mla_with_dims() -> None:
    """One kernel whatever is typical. That of a call in the interpreter checks page numbers less."""

    def lowered(batch: Any, pages: Any, table: Any) -> list[str]:
        given = Spec((batch, 1, 16, 576), bf16), Spec((pages, 64, 576), bf16), Spec((batch,), kd.int32)
        return code(library.mla_decode.lower(*given, Spec((batch, table), kd.int32), scale=0.1))

    one = lowered(B, kd.Dim("P", max=900), kd.Dim("T", max=99))
    assert one == lowered(B, kd.Dim("P", max=100), kd.Dim("T", max=120)) != lowered(32, 900, 99)


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "N": (lambda: library.matmul.lower(Spec((8, 64), bf16), Spec((64, M), bf16)), "its extent Dim"),
    "K": (lambda: library.matmul.lower(Spec((8, M), bf16), Spec((M, 64), bf16)), "its extent Dim"),
    "heads": (lambda: library.attention.lower(*[Spec((2, M, 64, 64), bf16)] * 3), "its extent Dim"),
    "a page": (
        lambda: library.decode_attention.lower(*decoding(2, M), page_table=Spec((2, 4), kd.int32)),
        "its extent Dim",
    ),
    "columns of groups": (
        lambda: library.grouped_matmul.lower(Spec((64, M), bf16), Spec((4, 64, 64), bf16), Spec((4,), kd.int32)),
        "its extent Dim",
    ),
    "a vocabulary": (
        lambda: library.linear_cross_entropy.lower(Spec((8, 64), bf16), Spec((M, 64), bf16), Spec((8,), kd.int32)),
        "its extent Dim",
    ),
    "heads of gradients": (
        lambda: library.attention_backward.lower(*[Spec((2, M, 64, 64), bf16)] * 5, Spec((2, M, 64), kd.float32)),
        "its extent Dim",
    ),
    "a call": (lambda: library.matmul(Spec((M, 64), bf16), Spec((64, 64), bf16)), "whose extents have no values"),
}


@pytest.mark.parametrize("name", WRONG)
def test_dims_where_none_can_be(name: str) -> None:
    call, words = WRONG[name]
    with pytest.raises(BadCallArgument, match=words) as caught:
        call()
    assert caught.value.loc.file == __file__
