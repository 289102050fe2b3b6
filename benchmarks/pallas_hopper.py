"""Pallas' own Hopper matmuls as peers, each with the best of its tuning grid."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.gpu import hopper_matmul_mgpu, hopper_mixed_type_matmul_mgpu

from .kernel_clock import Clock, reason

TILES = [(128, 128), (64, 128), (128, 64), (256, 64)]  # of one warpgroup; two of them make a block's
WIDTHS = (4, 8, 16)
THREADS = 8


def first_grid(module: Any, depths: tuple[int, ...]) -> list[Any]:
    """The tile sizes of the module's own `main`, at one order of the tiles."""
    return [
        module.TuningConfig(m, n, k, 4, grid_minor_dim=module.MatmulDimension.M, grid_tile_width=8, wg_dimension=side)
        for (m, n), k, side in itertools.product(TILES, depths, module.MatmulDimension)
    ]


def orders(module: Any, config: Any) -> Iterator[Any]:
    """The other orders of the tiles."""
    for minor, width in itertools.product(module.MatmulDimension, WIDTHS):
        made = replace(config, grid_minor_dim=minor, grid_tile_width=width)
        if made != config:
            yield made


def say(c: Any) -> str:
    """A configuration in a few words."""
    side, minor = c.wg_dimension, c.grid_minor_dim
    return f"{c.tile_m}x{c.tile_n}x{c.tile_k} s{c.max_concurrent_steps} wg{side} minor{minor} width{c.grid_tile_width}"


class Sweep:
    """Times configurations of one problem until its seconds are spent; compiles in threads."""

    def __init__(self, make: Callable[[Any], Any], args: tuple[Any, ...], clock: Clock, seconds: float) -> None:
        self._make, self._args, self._clock = make, args, clock
        self._end = time.monotonic() + seconds
        self.found: list[tuple[float, Any, Any]] = []
        self.failed: list[str] = []
        self.left = 0

    def _compile(self, config: Any) -> Any:
        if time.monotonic() > self._end:
            return None
        return jax.jit(self._make(config)).lower(*self._args).compile()

    def add(self, configs: list[Any]) -> None:
        """Compile and time some more."""
        with ThreadPoolExecutor(THREADS) as pool:
            waiting = [(c, pool.submit(self._compile, c)) for c in configs]
            for config, future in waiting:
                try:
                    compiled = future.result()
                    if compiled is None:
                        self.left += 1
                        continue
                    run = functools.partial(compiled, *self._args)
                    self._clock.seconds(run, 1)
                    self.found.append((self._clock.seconds(run, 3), config, run))
                except Exception as error:
                    self.failed.append(reason(error))
        self.found.sort(key=lambda row: row[0])


def tuned(module: Any, make: Callable[[Any], Any], args: tuple[Any, ...], depths: tuple[int, ...], clock: Clock,
          seconds: float) -> tuple[Callable[[], Any], str]:  # fmt: skip
    """The fastest, and which it is. Raises RuntimeError where none runs."""
    sweep = Sweep(make, args, clock, seconds)
    sweep.add(first_grid(module, depths))
    best = [config for _, config, _ in sweep.found[:2]]
    sweep.add([other for config in best for other in orders(module, config)])
    if not sweep.found:
        raise RuntimeError("; ".join(dict.fromkeys(sweep.failed)) or "no time was left to compile one")
    _, config, run = sweep.found[0]
    tried = f"{len(sweep.found)} timed, {len(sweep.failed)} refused, {sweep.left} left out"
    return run, f"{say(config)} ({tried})"


def as_jax(x: Any) -> Any:
    """A PyTorch tensor's own memory as a JAX array."""
    return jnp.from_dlpack(x)


def bf16(a: Any, b: Any, clock: Clock, seconds: float) -> tuple[Callable[[], Any], str]:
    """`hopper_matmul_mgpu` on PyTorch tensors a (M, K) and b (K, N), both row-major."""
    module = hopper_matmul_mgpu

    def make(config: Any) -> Any:
        return lambda x, y: module.matmul(x, y, None, config)

    return tuned(module, make, (as_jax(a), as_jax(b)), (64,), clock, seconds)


def mixed(a: Any, b: Any, clock: Clock, seconds: float) -> tuple[Callable[[], Any], str]:
    """`hopper_mixed_type_matmul_mgpu` on int8 a (M, K) and bfloat16 b (K, N), both row-major."""
    module = hopper_mixed_type_matmul_mgpu

    def make(config: Any) -> Any:
        return lambda x, y: module.mixed_matmul_kernel(x, y, out_dtype=jnp.bfloat16, config=config)

    return tuned(module, make, (as_jax(a), as_jax(b)), (64, 128), clock, seconds)
