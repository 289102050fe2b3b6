"""JAX arrays. They are immutable, so only results that this package allocated are ever written.

XLA runs on streams of its own, and frees memory in their order, without regard to our streams. So a call waits for
its inputs before the launch, and for the launch before it returns.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any

import numpy as np

from kernel_dsl.diagnostics import of_kind
from kernel_dsl.dtypes import DType, as_dtype

from ...devices import driver
from ...errors import ArgumentTypeError, ArgumentValueError
from ..array_view import CPU, ArrayView, Streamless, row_major

# The program has imported JAX: this file is loaded for the first JAX array.
jax: Any = sys.modules["jax"]


def _wide(dtype: DType) -> Any:
    """A context in which JAX keeps 64-bit types, whatever its configuration."""
    if dtype.bits < 64:
        return nullcontext()
    switch = getattr(jax, "enable_x64", None)
    return jax.experimental.enable_x64(True) if switch is None else switch(True)


class _Jax(Streamless):
    """The interface of this file.

    `home`: JAX's device for results in host memory; None for its first CPU. `committed`: whether JAX counts results as
    committed to it, so that later operations do not move them.
    """

    name = "jax"

    def __init__(self, home: Any = None, committed: bool = True) -> None:
        self._home = home
        self._committed = committed

    def beside(self, arrays: Iterable[ArrayView], kernel: str) -> _Jax:
        """This interface, with results on the device of these arrays. Raises ArgumentValueError for arrays on several CPUs."""
        places = [
            (next(iter(a.owner.devices())), getattr(a.owner, "committed", True)) for a in arrays if a.device == CPU
        ]
        fixed = list(dict.fromkeys(device for device, committed in places if committed))
        if len(fixed) > 1:
            listed = " and ".join(map(str, fixed))
            raise ArgumentValueError(
                f"the arrays of a call of {kernel!r} are on {listed}; move them to one device with jax.device_put"
            )
        return _Jax(fixed[0]) if fixed else _Jax(places[0][0], committed=False) if places else self

    def view(self, array: Any, stream: int) -> ArrayView:
        if isinstance(array, jax.core.Tracer) or not isinstance(array, jax.Array):
            raise ArgumentTypeError(
                f"{of_kind(array)} has no memory: do this outside of JAX's transformations. Inside them only a call, "
                "`kernel(x)`, works, and `lower` of a `kd.ShapeDtypeStruct`"
            )
        if array.is_deleted():
            raise ArgumentValueError("a JAX array that was deleted or donated cannot be passed to a kernel")
        devices = array.devices()
        if len(devices) != 1:
            raise ArgumentValueError(
                f"a JAX array sharded over {len(devices)} devices cannot be passed to a kernel; "
                "move it to one "
                "with jax.device_put"
            )
        try:
            dtype = as_dtype(array.dtype)
        except TypeError:
            raise ArgumentTypeError(
                f"a JAX array of {array.dtype} cannot be passed to a kernel: kernels lack this dtype, so convert it"
            ) from None
        device = next(iter(devices))
        shape = tuple(array.shape)
        array.block_until_ready()
        place = CPU if device.platform == "cpu" else ("cuda", int(device.local_hardware_id))
        if place != CPU and device.platform not in ("gpu", "cuda"):
            raise ArgumentTypeError(f"a JAX array on {device} is neither in host memory nor on a CUDA GPU")
        address = array.unsafe_buffer_pointer()
        return ArrayView(address, shape, row_major(shape), dtype, place, "jax", True, array)

    def empty(self, shape: tuple[int, ...], dtype: DType, device: tuple[str, int], stream: int) -> Any:
        if device == CPU:
            return np.empty(shape, dtype.numpy)
        with _wide(dtype):
            return jax.numpy.empty(shape, dtype.numpy, device=_gpu(device[1]))

    def finish(self, array: Any, view: ArrayView, stream: int) -> Any:
        if isinstance(array, np.ndarray):
            with _wide(view.dtype):
                home = self._home or jax.devices("cpu")[0]
                with nullcontext() if self._committed else jax.default_device(home):
                    return jax.device_put(array, home if self._committed else None)
        driver.check(driver.api().cuStreamSynchronize(stream))
        return array


def _gpu(index: int) -> Any:
    for device in jax.local_devices(backend="gpu"):
        if int(device.local_hardware_id) == index:
            return device
    raise ArgumentValueError(f"JAX does not see the GPU cuda:{index}")


INTEROP = _Jax()
