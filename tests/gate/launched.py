"""Calls of the library that launch several kernels, and which kernels those are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any
from unittest import mock

import numpy as np

import kernel_dsl as kd
from kernel_dsl.definition import output_structs
from kernel_dsl.dtypes import as_dtype
from kernel_dsl.kernel import Kernel
from kernel_dsl.library.grouped.arguments import GroupedOptions
from kernel_dsl.library.grouped.derivatives import gradients as grouped_gradients
from kernel_dsl.library.losses.arguments import CrossEntropyCall
from kernel_dsl.library.losses.gradients import loss_and_gradients
from kernel_dsl.library.losses.kernels import stack_kernel
from kernel_dsl.library.losses.linear_cross_entropy import combine_backward, partials_backward
from kernel_dsl.library.norms import Norm, column_sums, gradients_kernel
from kernel_dsl.library.products.gate_gradients import gate_gradients
from kernel_dsl.library.ring.gradients import adding_kernel
from kernel_dsl.library.rotary import gradient_kernel
from kernel_dsl.mesh_kernel import MeshKernel
from kernel_dsl.tree import unflatten

Launch = tuple[str, Any, tuple[Any, ...]]


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
    adding_kernel(2, (1, 16, 576), kd.bfloat16)(cache_, cache_, interpret=True)
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
    whole_rows = np.ones((72, 32), kd.bfloat16.numpy)
    loss_and_gradients(x, whole_rows, targets, np.ones(72, np.float32), given | {"label_smoothing": 0.0}, True)
    call = CrossEntropyCall("", **given | {"vocab_start": 0})
    parts = kd.library.linear_cross_entropy(x, weight, targets, bias=bias, vocab_start=0, **options)[None]
    _, lse = kd.library.linear_cross_entropy_combine(parts, targets, vocab=70, return_lse=True, **options)
    whole = CrossEntropyCall("", **given, vocab=70)
    slope = combine_backward(np.ones((), np.float32), parts, targets, lse, whole, True)
    partials_backward(slope[0], x, weight, targets, parts[0], bias, call, True)


def _gate() -> None:
    x = np.ones((20, 16), kd.bfloat16.numpy)
    gate_gradients("swiglu", (x, x), x, kd.bfloat16, True)


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
    for channels in (8, 72):  # filters are read as they lie, or exchanged first
        y, w = np.ones((1, 20, 20, channels), x.dtype), np.ones((8, 1, 1, channels), x.dtype)
        kd.library.conv2d_dgrad(x, w, y.shape, interpret=True)
    kd.library.conv2d_wgrad(x, x, 1, interpret=True)
    kd.library.conv2d_wgrad(*[x.astype(np.float32)] * 2, 1, interpret=True)


def _norms() -> None:
    for columns in (200, 5000):
        x, weight = np.ones((3, columns), kd.bfloat16.numpy), np.ones(columns, kd.bfloat16.numpy)
        kd.library.rms_norm(x, weight, interpret=True)
        kd.library.layer_norm(x, weight, weight, interpret=True)
        for centred in (False, True):
            _, sums, *_ = gradients_kernel(Norm("norm", centred, 1e-5))(x, weight, x, interpret=True)
        column_sums(kd.bfloat16)(sums, interpret=True)
    places, angles = np.zeros(3, np.int32), np.ones((4, 16), np.float32)
    rows = np.ones((3, 5, 32), kd.bfloat16.numpy)
    kd.library.rope(rows, places, angles, angles, interpret=True)
    parts = kd.library.rope(rows, places, angles, angles, heads=(3, 1), interpret=True)
    gradient_kernel((3, 1, 1))(*parts, places, angles, angles, interpret=True)


def _collectives() -> None:
    mesh, hosts = kd.Mesh(("x",), (2,)), kd.Mesh(("host", "x"), (2, 2), hosts="host")

    def rows(*shape: int, dtype: Any = kd.bfloat16, devices: int = 2) -> list[Any]:
        return [np.ones(shape, dtype.numpy) for _ in range(devices)]

    x, far = rows(4096), rows(1024, devices=4)
    for algorithm in ("one-shot", "two-shot"):
        kd.library.all_reduce(x, mesh, algorithm=algorithm, timeout=1.0, interpret=True)
    for collective in (kd.library.all_gather, kd.library.reduce_scatter, kd.library.all_reduce):
        collective(x, mesh, interpret=True)
        collective(far, hosts, interpret=True)
    kd.library.all_to_all(rows(6, 40), rows(2, dtype=kd.int32), mesh, interpret=True)
    received, _, places = kd.library.expert_dispatch(
        rows(6, 32), rows(6, 2, dtype=kd.int32), mesh, num_experts=4, interpret=True
    )
    ids, weights = rows(6, 2, dtype=kd.int32), rows(6, 2, dtype=kd.float32)
    kd.library.expert_combine(received, ids, places, weights, mesh, num_experts=4, interpret=True)


def _tensor_parallel() -> None:
    mesh = kd.Mesh(("x",), (2,))

    def rows(*shape: int, dtype: Any = kd.bfloat16) -> list[Any]:
        return [np.ones(shape, dtype.numpy) for _ in range(2)]

    x, w = rows(256, 64), rows(64, 256)
    for function in (kd.library.all_gather_matmul, kd.library.matmul_reduce_scatter, kd.library.matmul_all_reduce):
        function(x, w, mesh, interpret=True)


def _ring() -> None:
    mesh = kd.Mesh(("x",), (2,))

    def rows(*shape: int, dtype: Any = kd.bfloat16) -> list[Any]:
        return [np.ones(shape, dtype.numpy) for _ in range(2)]

    q, k = rows(1, 4, 256, 128), rows(1, 2, 256, 128)
    kd.library.ring_attention(q, k, k, mesh, causal=True, return_lse=True, interpret=True)
    q = rows(1, 2, 5, 12)
    out, lse = kd.library.ring_attention(q, q, q, mesh, return_lse=True, interpret=True)
    kd.library.ring_attention_backward(q, q, q, q, out, lse, mesh, interpret=True)


@cache
def mesh_calls() -> tuple[Launch, ...]:
    """(group, kernel, one device's arguments described) of launches on a mesh."""

    def zeros(made: list[Any], args: tuple[Any, ...]) -> list[Any]:
        return [[np.zeros(s.shape, s.dtype.numpy) for _ in args[0]] for s in made]

    with _watched(MeshKernel, lambda x: x[0], zeros) as seen:
        return (*seen("collective", _collectives), *seen("product", _tensor_parallel), *seen("ring", _ring))


@cache
def calls() -> tuple[Launch, ...]:
    """(group, kernel, its arguments described) of each launch."""
    products = (_grouped, _cross_entropy, _gate, _int4, _sparse, _conv, _norms)
    with _watched(Kernel, lambda x: x, lambda made, args: [np.zeros(s.shape, s.dtype.numpy) for s in made]) as seen:
        return (*(launch for run in products for launch in seen("matmul", run)), *seen("attention", _decode))


@contextmanager
def _watched(kind: type, one: Any, zeros: Any) -> Iterator[Callable[[str, Callable[[], None]], list[Launch]]]:
    """Collect the launches of a kind of kernels. None is compiled or run: outputs that are not given hold zeros.

    `one(argument)` is what one device gets, and `zeros(structs, arguments)` makes the outputs.
    """
    found: list[tuple[Any, tuple[Any, ...]]] = []

    def watched(self: Any, args: tuple[Any, ...], out: Any, stream: Any, interpret: Any) -> Any:
        structs = tuple(map(_described, map(one, args)))
        found.append((self, structs))
        made, nest = output_structs(self._definition, structs)
        return unflatten(nest, zeros([s for s in made if s is not None], args)) if out is None else out

    def seen(group: str, run: Callable[[], None]) -> list[Launch]:
        found.clear()
        run()
        return [(group, *launch) for launch in found]

    with mock.patch.object(kind, "_slow_call", watched):
        yield seen


def _described(x: Any) -> Any:
    """The struct of an array; a scalar as it is."""
    return kd.ShapeDtypeStruct(x.shape, as_dtype(x.dtype)) if hasattr(x, "shape") else x
