"""Calls of the library that launch several kernels, and which kernels those are."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any
from unittest import mock

import numpy as np

import kernel_dsl as kd
from kernel_dsl.kernel import Kernel
from kernel_dsl.library.cross_entropy import combine_backward, partials_backward
from kernel_dsl.library.cross_entropy_arguments import CrossEntropyCall
from kernel_dsl.library.cross_entropy_gradients import loss_and_gradients
from kernel_dsl.library.cross_entropy_kernels import stack_kernel
from kernel_dsl.library.grouped_arguments import GroupedOptions
from kernel_dsl.library.grouped_derivatives import gradients as grouped_gradients


def _grouped() -> None:
    a, b = np.ones((40, 32), kd.bfloat16.numpy), np.ones((3, 32, 16), kd.bfloat16.numpy)
    sizes, rows = np.array([20, 0, 20], np.int32), np.arange(40, dtype=np.int32)
    weights = np.ones(40, np.float32)
    kd.library.grouped_matmul(a, b, sizes, indices=rows, scatter=rows, weights=weights, interpret=True)
    kd.library.grouped_matmul(a[:0], b, sizes * 0, interpret=True)
    dout = np.ones((40, 16), kd.bfloat16.numpy)
    kd.library.grouped_matmul_wgrad(a, dout, sizes, interpret=True)
    grouped_gradients(dout, a, b, GroupedOptions(sizes, activation=kd.exp), True)
    kd.library.grouped_matmul_wgrad(a.astype(np.float64), dout.astype(np.float64), sizes, interpret=True)


def _decode() -> None:
    q, k = np.ones((1, 2, 1, 64), kd.bfloat16.numpy), np.ones((1, 1, 600, 64), kd.bfloat16.numpy)
    lengths, table = np.array([590], np.int32), np.zeros((1, 1), np.int32)
    kd.library.decode_attention(q, k, k, lengths, splits=2, interpret=True)
    kd.library.decode_attention(q[..., ::2], k[..., ::2], k[..., ::2], lengths, interpret=True)
    q, cache_ = np.ones((1, 1, 2, 576), kd.bfloat16.numpy), np.ones((1, 16, 576), kd.bfloat16.numpy)
    kd.library.mla_decode(q, cache_, np.array([12], np.int32), table, scale=0.1, interpret=True)
    kd.library.attention(q[..., :64], *[cache_[..., None, :64]] * 2, layout="bshd", page_table=table, interpret=True)
    few = cache_[:, None, :2, :64].copy()
    kd.library.attention(q.swapaxes(1, 2)[..., :64].copy(), few, few, page_table=table, interpret=True)
    kd.library.mla_decode(q, cache_[:, :3].copy(), np.array([2], np.int32), table, scale=0.1, interpret=True)


def _cross_entropy() -> None:
    x, weight, targets = np.ones((20, 32), kd.bfloat16.numpy), np.ones((70, 32), kd.bfloat16.numpy), np.arange(20)
    bias, options = np.ones(70, np.float32), {"label_smoothing": 0.1, "interpret": True}
    _, lse = kd.library.linear_cross_entropy(x, weight, targets, bias=bias, return_lse=True, **options)
    kd.library.linear_cross_entropy_backward(1.0, x, weight, targets, lse, bias=bias, chunk=40, **options)
    kd.library.linear_cross_entropy(x.astype(np.float32), weight.astype(np.float32), targets, interpret=True)
    stack_kernel(((20, 32), (70, 32)), kd.bfloat16)(x, weight, interpret=True)
    given = {"ignore_index": -100, "label_smoothing": 0.1, "reduction": "mean", "vocab_start": None}
    loss_and_gradients(x, weight, targets, bias, given, True, rows=16)
    call = CrossEntropyCall("", **given | {"vocab_start": 0})
    parts = kd.library.linear_cross_entropy(x, weight, targets, bias=bias, vocab_start=0, **options)[None]
    _, lse = kd.library.linear_cross_entropy_combine(parts, targets, vocab=70, return_lse=True, **options)
    whole = CrossEntropyCall("", **given, vocab=70)
    slope = combine_backward(np.ones((), np.float32), parts, targets, lse, whole, True)
    partials_backward(slope[0], x, weight, targets, parts[0], bias, call, True)


def _int4() -> None:
    w, a = np.ones((130, 64), np.float32), np.ones((20, 130), kd.bfloat16.numpy)
    for zeros in (None, True):
        kd.library.matmul(a, kd.library.pack_int4(w, zeros=zeros, interpret=True), interpret=True)
    kd.library.pack_int4(w, interpret=True).unpacked(kd.bfloat16, interpret=True)
    packed = kd.library.pack_mxfp4(w, interpret=True)
    packed.unpacked(kd.bfloat16, interpret=True)
    kd.library.matmul(a, packed, interpret=True)


def _sparse() -> None:
    for dtype in (kd.bfloat16, kd.float32, kd.int8):
        a, b = np.zeros((20, 64), dtype.numpy), np.ones((64, 16), dtype.numpy)
        matrix = kd.library.sparse_compress(a, interpret=True)
        kd.library.sparse_matmul(matrix, b, precision="tf32" if dtype == kd.float32 else None, interpret=True)
        kd.library.sparse_decompress(matrix, interpret=True)
    kd.library.sparse_compress(a, prune=True, interpret=True)


def _conv() -> None:
    x, w = np.ones((1, 20, 20, 8), kd.bfloat16.numpy), np.ones((8, 1, 1, 8), kd.bfloat16.numpy)
    for stride in (1, 2):
        out = kd.library.conv2d(x, w, stride=stride, interpret=True)
    kd.library.conv2d_dgrad(out, w, x.shape, stride=2, interpret=True)
    kd.library.conv2d_dgrad(x, w, x.shape, interpret=True)
    kd.library.conv2d_wgrad(x, x, 1, interpret=True)
    kd.library.conv2d_wgrad(*[x.astype(np.float32)] * 2, 1, interpret=True)


@cache
def calls() -> tuple[tuple[str, Any, tuple[Any, ...]], ...]:
    """(group, kernel, its arguments described) of each launch."""
    return (
        *_seen("matmul", _grouped),
        *_seen("matmul", _cross_entropy),
        *_seen("matmul", _int4),
        *_seen("matmul", _sparse),
        *_seen("matmul", _conv),
        *_seen("attention", _decode),
    )


def _seen(group: str, run: Any) -> Iterator[tuple[str, Any, tuple[Any, ...]]]:
    found: list[tuple[str, Any, tuple[Any, ...]]] = []
    prepare = Kernel._prepare

    def watched(self: Any, args: tuple[Any, ...], *rest: Any) -> Any:
        structs = tuple(kd.ShapeDtypeStruct(x.shape, x.dtype) if hasattr(x, "shape") else x for x in args)
        found.append((group, self, structs))
        return prepare(self, args, *rest)

    with mock.patch.object(Kernel, "_prepare", watched):
        run()
    yield from found
