"""The devices of a mesh, and arrays on them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from kernel_dsl.dtypes import DType
from kernel_dsl.errors_mesh import Unreachable
from kernel_dsl.interpret_params import InterpretParams

from ..arrays.array_view import CPU, ArrayView, frameworks
from ..devices import driver
from ..devices.devices import cuda_device, interpreter_device
from ..errors import ArgumentValueError, DeviceError


def on_gpus(interpret: Any, size: int) -> bool:
    """Return whether `size` devices are GPUs, for a call without arrays.

    Raises DeviceError if they must be GPUs and this process has fewer.
    """
    if interpret is True or isinstance(interpret, InterpretParams):
        return False
    there = driver.device_count()
    if there >= size:
        return True
    if interpret is False:
        raise DeviceError(
            f"interpret=False asks for {size} GPUs, and this process sees {there}. "
            "Leave interpret out, or pass True, to run in the PTX interpreter"
        )
    return False


def empty(shape: tuple[int, ...], dtype: DType, size: int, interpret: Any) -> list[Any]:
    """Return one uninitialised array for each device, of torch if it is imported."""
    if not on_gpus(interpret, size):
        return [frameworks("numpy").empty(shape, dtype, CPU, 0) for _ in range(size)]
    torch = sys.modules.get("torch")
    made: list[Any] = []
    for index in range(size):
        with driver.current(cuda_device(index).context):
            if torch is not None and torch.cuda.is_available():
                interop = frameworks("torch")
                made.append(interop.empty(shape, dtype, ("cuda", index), interop.current_stream(index)))
            else:
                made.append(frameworks("generic").empty(shape, dtype, ("cuda", index), 0))
    return made


def devices_of(name: str, rows: Sequence[Sequence[ArrayView]], size: int, interpret: Any) -> list[Any]:
    """Return the devices of a call, one for each rank: the GPUs of the arrays, or virtual devices of the interpreter.
    Raises `Unreachable` if the interpreter has fewer devices, and ArgumentValueError if a rank's arrays lie on two GPUs
    or two ranks share a GPU.
    """
    if isinstance(interpret, InterpretParams) and interpret.devices is not None and interpret.devices < size:
        why = f"kernel {name!r} runs on {size} devices, and the interpreter has {interpret.devices}"
        hint = f"pass `kd.InterpretParams(devices={size})`, or omit `devices`"
        raise Unreachable(rank=0, peer=interpret.devices, why=why, hint=hint)
    places = [{row[rank].device for row in rows if row[rank].size} for rank in range(size)]
    if interpret is True or isinstance(interpret, InterpretParams) or not _gpus(name, places, interpret):
        one = interpreter_device(interpret if isinstance(interpret, InterpretParams) else None)
        return [one] * size
    indices = [next((index for kind, index in place if kind == "cuda"), None) for place in places]
    found = [rank if index is None else index for rank, index in enumerate(indices)]
    for rank, index in enumerate(found):
        if found.index(index) != rank:
            raise ArgumentValueError(
                f"kernel {name!r}: ranks {found.index(index)} and {rank} both have their arrays on cuda:{index}; "
                "each rank needs its own GPU"
            )
    return [cuda_device(index) for index in found]


def _gpus(name: str, places: Sequence[set[tuple[str, int]]], interpret: Any) -> bool:
    """Return whether a call runs on GPUs: its arrays lie there, or there are no arrays and enough GPUs."""
    mixed = [rank for rank, place in enumerate(places) if len(place) > 1]
    if mixed:
        listed = " and ".join(sorted(f"{kind}:{index}" for kind, index in places[mixed[0]]))
        raise ArgumentValueError(f"kernel {name!r}: the arrays of rank {mixed[0]} lie on {listed}; move them to one")
    kinds = {kind for place in places for kind, _ in place}
    if len(kinds) > 1:
        raise ArgumentValueError(
            f"kernel {name!r}: some ranks have arrays on GPUs, and some in host memory; move them to one"
        )
    return "cuda" in kinds or on_gpus(interpret, len(places))
