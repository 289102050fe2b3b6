"""The GPU's context around calls of the driver, their errors as a graph's, and the end of the driver's objects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..devices import driver
from ..devices.failures import launch_error


class GraphContext:
    """A context manager: the GPU's context, and driver errors as errors of the graph."""

    def __init__(self, device: Any, doing: str, names: Sequence[str]) -> None:
        self._device = device
        self._doing = doing
        self._names = names

    def __enter__(self) -> None:
        try:
            driver.check(driver.api().cuCtxPushCurrent(self._device.context))
        except driver.CudaError as error:
            raise self._told(error) from error

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        driver.api().cuCtxPopCurrent()
        if isinstance(error, driver.CudaError):
            raise self._told(error) from error

    def _told(self, error: driver.CudaError) -> Exception:
        listed = ", ".join(self._names[:8]) + (", ..." if len(self._names) > 8 else "")
        return launch_error(error, f"graph of {len(self._names)} nodes ({listed})", None, [], self._doing)


def release(device: Any, executables: list[Any], graphs: list[Any], memory: list[int]) -> None:
    """Destroy a graph and free its memory, after its launches have finished."""
    if not driver.alive():
        return
    cu = driver.api()
    cu.cuCtxPushCurrent(device.context)
    while executables:
        cu.cuGraphExecDestroy(executables.pop())
    while graphs:
        cu.cuGraphDestroy(graphs.pop())
    with driver.relaxed_capture():
        while memory:
            cu.cuMemFree(memory.pop())  # waits for the GPU
    cu.cuCtxPopCurrent()


def destroy_events(first: Any, last: Any) -> None:
    if driver.alive():
        for event in (first, last):
            driver.api().cuEventDestroy(event)
