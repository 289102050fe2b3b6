"""The gradients of convolutions under JAX and PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kernel_dsl.dtypes import as_dtype

from ..differentiable import FUNCTIONS, Derivative, check_plain
from .problem import ConvProblem


def conv2d(host: str, x: Any, w: Any, p: ConvProblem, how: dict[str, Any]) -> Any:
    """A call of `conv2d`."""
    forward, dgrad, wgrad = FUNCTIONS["conv2d"], FUNCTIONS["conv2d_dgrad"], FUNCTIONS["conv2d_wgrad"]
    check_plain("conv2d", how)
    options: dict[str, Any] = {
        "stride": p.stride, "padding": p.padding, "dilation": p.dilation, "groups": p.groups,
    }  # fmt: skip
    more = {**options, "interpret": how["interpret"]}

    def backward(gradient: Any, arrays: Sequence[Any], results: Sequence[Any]) -> list[Any]:
        x, w = arrays
        size, taps = tuple(map(int, x.shape)), tuple(map(int, w.shape[1:3]))
        return [dgrad(gradient, w, size, **more), wgrad(x, gradient, taps, **more)]

    def shapes(x: Any, w: Any) -> list[tuple[tuple[int, ...], Any]]:
        dtype = as_dtype(x.dtype)
        (batch, height, width, channels), (filters, rows, columns, _) = x.shape, w.shape
        again = ConvProblem(batch, height, width, channels, filters, (rows, columns), **options, dtype=dtype)
        return [(again.out_shape, dtype)]

    rule = Derivative(
        "conv2d",
        (tuple(sorted(options.items())), how["interpret"]),
        lambda x, w: (forward(x, w, **more),),
        backward,
        shapes,
        (True, True),
    )
    return rule(host, [x, w])
