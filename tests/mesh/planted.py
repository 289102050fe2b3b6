"""Planted bugs between devices: what each is, how it is run, and the steps that many of them have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import kernel_dsl as kd

N = 256
HALF = N // 2
SEM = kd.SemaphoreType.REGULAR
PAIR, TRIO = kd.Mesh(("x",), (2,)), kd.Mesh(("x",), (3,))
GRID, HOSTS = kd.Mesh(("a", "b"), (2, 2)), kd.Mesh(("host", "x"), (2, 2), hosts="host")
APART = ((0, 1), (2, 3))
ROW, ZEROS = kd.ShapeDtypeStruct((N,), kd.float32), kd.ShapeDtypeStruct((N,), kd.float32, init=0)
COUNT = kd.ShapeDtypeStruct((1,), kd.int32, init=0)
SEMS = SEM((4,))
ROOM, LOADED = kd.SMEM((N,), kd.float32), kd.Barrier()


@dataclass
class Planted:
    """`body(bad, x, *outputs, *scratch)`. `kinds`: the hazards that the bug may be told as."""

    body: Callable[..., None]
    kinds: tuple[str, ...]
    mesh: kd.Mesh = PAIR
    out: Any = ROW
    scratch: tuple[Any, ...] = (SEMS,)
    grid: int = 1
    warpgroups: int = 1
    mapped: Any = None
    calls: int = 1
    seeds: Any = field(default_factory=lambda: range(12))

    def found(self, bad: bool, seed: Any) -> kd.HazardError | None:
        kernel = kd.kernel(
            lambda *refs: self.body(bad, *refs),
            out_type=self.out,
            mesh=self.mesh,
            scratch_types=list(self.scratch),
            grid=(self.grid,),
            grid_names=("block",),
            num_threads=self.warpgroups,
            thread_name="wg",
        )
        xs = [np.arange(N, dtype=np.float32) + N * rank for rank in range(self.mesh.size)]
        how: dict[str, Any] = {"seed": seed} if isinstance(seed, int) else {"schedule": seed}
        try:
            for _ in range(self.calls):
                kernel(xs, interpret=kd.InterpretParams(mapped=self.mapped, **how))
        except kd.HazardError as error:
            return error
        return None


def planted(bugs: dict[str, Planted], *kinds: str, **how: Any) -> Callable[[Callable[..., None]], None]:
    """Enter a body among `bugs` by its name."""

    def add(body: Callable[..., None]) -> None:
        bugs[body.__name__] = Planted(body, kinds, **how)

    return add


def check(bug: Planted, every: bool) -> None:
    """The bug is found under some schedule; its twin is clean under a few, or under `every` one."""
    schedules: list[Any] = ["late", *bug.seeds, "eager"]
    error = next(filter(None, (bug.found(True, seed) for seed in schedules)), None)
    assert error is not None and error.kind in bug.kinds, error
    assert "device" in str(error)
    assert error.line is None or error.line.file in (bug.body.__code__.co_filename, __file__)
    for seed in schedules if every else schedules[:3]:
        clean = bug.found(False, seed)
        assert clean is None, clean


def me() -> Any:
    return kd.axis_index("x")


def peer() -> Any:
    return 1 - kd.axis_index("x")


def after(k: int = 1) -> Any:
    return kd.rem(me() + k, 3)


def tell(sem: Any, device: Any = None, **how: Any) -> None:
    kd.semaphore_signal(sem, device_id=peer() if device is None else device, **how)


def swapped(sem: Any) -> None:
    tell(sem)
    kd.semaphore_wait(sem)


def meet(sem: Any, axes: Any, devices: int) -> None:
    kd.semaphore_signal_multicast(sem, collective_axes=axes)
    kd.semaphore_wait(sem, devices)


def bump(ref: Any) -> None:
    ref[...] = ref[...] + 1


def bring(src: Any, smem: Any, barrier: Any, out: Any) -> None:
    kd.copy_gmem_to_smem(src, smem, barrier)
    kd.barrier_wait(barrier)
    out[...] = smem[...]
