"""The route that a product takes, from shapes alone: arrays that say where they lie, and hold nothing."""

from __future__ import annotations

from typing import Any

from kernel_dsl.library.product_routes.routes import Route, route
from kernel_dsl.library.products.arguments import request
from kernel_dsl.library.products.matmul_options import MatmulOptions
from kernel_dsl.refs import strides_of
from kernel_dsl.stages import target_named


class Lying:
    """A struct with strides and an address, for what is decided without data."""

    def __init__(
        self, shape: tuple[int, ...], dtype: Any, strides: tuple[int, ...] | None = None, address: int = 0
    ) -> None:
        self.shape, self.dtype = shape, dtype
        self.strides = tuple(s * dtype.itemsize for s in strides or strides_of(shape))
        self.__array_interface__ = {"data": (address, False)}


def routed(M: int, N: int, K: int, dtype: Any, ta: bool, tb: bool, target: str | None = None, **options: Any) -> Route:
    """The route of a product of matrices."""
    a = Lying((M, K), dtype, (1, M) if ta else None)
    b = Lying((K, N), options.pop("b_dtype", dtype), (1, K) if tb else None)
    r = request(a, b, MatmulOptions(precision=options.get("precision")), None)
    return route(r.problem, r.left, r.right, r.family, None, target_named(target))
