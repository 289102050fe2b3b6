"""Calls of the driver for graphs: the GPU's context and a graph's errors around them, captured streams, and the end."""

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


def is_capturing(stream: int) -> bool:
    """Whether what is launched in the stream becomes part of a graph."""
    cu = driver.api()
    return driver.check(cu.cuStreamIsCapturing(stream)) is cu.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE


def add_to_capture(stream: int, graph: Any) -> None:
    """Add a graph as a child node to the graph into which the stream is captured."""
    cu = driver.api()
    # Status, id, graph, dependencies; some versions add the kinds of edges and their number.
    info = driver.check(cu.cuStreamGetCaptureInfo(stream))
    outer, before = info[2], list(info[3] or ())
    child = driver.check(cu.cuGraphAddChildGraphNode(outer, before, len(before), graph))
    flag = int(cu.CUstreamUpdateCaptureDependencies_flags.CU_STREAM_SET_CAPTURE_DEPENDENCIES)
    driver.check(cu.cuStreamUpdateCaptureDependencies(stream, [child], None, 1, flag))
