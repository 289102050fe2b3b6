"""Scalars among the inputs on a GPU: each call's own values, on any stream and in a captured graph."""

from __future__ import annotations

from typing import Any

import pytest

import kernel_dsl as kd

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("compiler")]
N = 1024
BODY = "int i = blockIdx.x * 128 + threadIdx.x; o[i] = x[i] * s[0] + n[0] + (float)(w[0] >> 33);"


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch")


@pytest.fixture
def x(torch: Any) -> Any:
    return torch.arange(float(N), device="cuda")


def call(x: Any, values: tuple[float, int, int], stream: Any = None) -> Any:
    kernel = kd.cuda_kernel("scalars", ["x", "s", "n", "w"], ["o"], BODY)
    (out,) = kernel(
        inputs=[x, *values],
        output_shapes=[(N,)],
        output_dtypes=["float32"],
        grid=(N, 1, 1),
        threadgroup=(128, 1, 1),
        stream=stream,
    )
    return out


def values(i: int) -> tuple[float, int, int]:
    return 0.5 * i, i - 100, (1 << 40) + (i << 33)


def check(torch: Any, out: Any, x: Any, given: tuple[float, int, int]) -> None:
    s, n, w = given
    torch.testing.assert_close(out, x * s + n + (w >> 33), rtol=0, atol=1e-3)


@pytest.mark.parametrize("side", [False, True])
def test_calls_that_do_not_wait_for_each_other(side: bool, torch: Any, x: Any) -> None:
    """Memory of scalars comes round again while earlier calls are still to run."""
    stream = torch.cuda.Stream() if side else None
    torch.cuda.synchronize()
    outs = [call(x, values(i), stream) for i in range(300)]
    torch.cuda.synchronize()
    for i, out in enumerate(outs):
        check(torch, out, x, values(i))


def test_a_captured_call_keeps_its_values(torch: Any, x: Any) -> None:
    call(x, values(1))
    call(x, values(2))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = call(x, values(7))
    for i in range(3):
        x.add_(1)
        call(x, values(i))
        graph.replay()
        torch.cuda.synchronize()
        check(torch, out, x, values(7))


@pytest.fixture
def room(torch: Any) -> Any:
    """Bytes that torch may have for a while: a hundredth of the GPU's, as other tests need theirs."""
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(0.01)
    yield torch.cuda.get_device_properties(0).total_memory // 100
    torch.cuda.set_per_process_memory_fraction(1.0)


def test_no_memory_is_our_error(torch: Any, room: int) -> None:
    """On a call whose way is known, and on one whose way is not; the next one works."""
    from kernel_dsl.runtime.errors import OutOfMemoryError

    big = torch.ones((int(room * 0.4) // 4096 // 4, 4096), device="cuda")

    @kd.kernel(out_type=lambda x: x)
    def first_row(x: Any, out: Any) -> None:
        out[0] = x[0]

    for _ in range(3):
        first_row(big)
    ballast = torch.empty(int(room * 0.3), dtype=torch.uint8, device="cuda")
    stream = torch.cuda.current_stream()
    for options in ({}, {"stream": stream}, {"interpret": False}):  # the last has no fast path
        with pytest.raises(OutOfMemoryError, match="output") as caught:
            first_row(big, **options)
        assert isinstance(caught.value.__cause__, torch.cuda.OutOfMemoryError)
        del caught
    del ballast
    assert float(first_row(big)[0].sum()) == 4096
