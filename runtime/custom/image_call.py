"""A call of an image as a loaded kernel, so that what makes traced kernels' calls cheap serves images too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kernel_dsl.compiled import ArrayAssumption, CompiledKernel, LaunchAttributes, PointerParam, ScalarParam
from kernel_dsl.dtypes import DType, as_dtype, bool_, float32, int32

from ..arrays.array_view import ArrayView, row_major
from ..devices import driver
from ..devices.cuda_device import CudaDevice, CudaImage
from ..devices.device import Device, LoadedImage
from ..devices.launch import Launcher
from ..errors import launch_error
from ..plan.args import AnyParam, ConstantParam, ParamLayout, PlacedParam
from .foreign import ForeignCall, Parameters


class ImageCall:
    """An entry of an image with the geometry of one call, in the form of a `CudaLoaded`.

    Its kernel knows shapes and dtypes of the call's arrays; outputs are new arrays at each call, and no input is
    written as far as overlaps go.
    """

    def __init__(self, image: CudaImage, launcher: Launcher, kernel: CompiledKernel, layout: ParamLayout) -> None:
        self.device: CudaDevice = image.device
        self.kernel = kernel
        self.layout = layout
        self.launcher = launcher
        self._image = image  # keeps the code loaded

    def encode(self, param: Any, view: ArrayView) -> bytes:
        """Never asked: an image takes no TMA descriptors from us."""
        raise TypeError(f"an image has no parameter {param!r}")

    def failure(self, error: Any, arrays: Sequence[ArrayView], doing: str = "launching") -> Exception:
        """The exception for a driver error met while `doing` something for a call."""
        name = self.kernel.entry
        return launch_error(error, error.name, error.meaning, name=name, kernel=None, arrays=arrays, doing=doing)


def image_call(
    device: Device, image: LoadedImage, call: ForeignCall, parameters: Parameters, scalars: Sequence[Any]
) -> ImageCall | None:
    """A call that was launched, for calls like it; None where it takes more than a launch.

    That is: copies of inputs, no threads. The call's scalars are those among its inputs, and then `scalars`, which
    follow the other parameters.
    """
    if not (isinstance(device, CudaDevice) and isinstance(image, CudaImage)) or call.threads.empty:
        return None
    place = ("cuda", device.index)
    views = [item.view for item in call.inputs if item.view is not None]
    if any(v.device != place for v in views):
        return None
    if call.contiguous and not all(v.contiguous and v.address % v.dtype.itemsize == 0 for v in views):
        return None
    try:
        kinds = [_scalar_dtype(value) for value in scalars]
    except TypeError:
        return None
    made = [ArrayView(0, o.shape, row_major(o.shape), o.dtype, place, "") for o in call.outputs]
    everything = [*views, *made]
    placed = [ArrayView(0, (), (), item.dtype, place, "") for item in call.inputs if item.view is None]
    pointers: dict[int, AnyParam] = {id(there): PointerParam(i) for i, there in enumerate(everything)}
    pointers |= {id(there): PlacedParam(i, there.dtype) for i, there in enumerate(placed)}
    stand_in = iter(placed)
    given = [item.view or next(stand_in) for item in call.inputs]
    params = [
        pointers[id(value)] if isinstance(value, ArrayView) else ConstantParam(bytes(value))
        for value in parameters(given, made)
    ]
    attributes = LaunchAttributes(call.threads.blocks, call.threads.block, dynamic_smem=call.shared_memory)
    kernel = CompiledKernel(
        name=call.name,
        entry=image.entry,
        ptx="",
        target=device.target.name,
        params=(),
        arrays=tuple(
            ArrayAssumption(v.shape, v.dtype, v.contiguous, 1, i >= len(views), "") for i, v in enumerate(everything)
        ),
        inputs=len(views),
        outputs=tuple(call.outputs),
        output_tree=None,
        launch=attributes,
    )
    layout = ParamLayout([*params, *(ScalarParam(i, kind) for i, kind in enumerate(kinds, len(placed)))])
    with driver.current(device.context):
        launcher = image.launcher(attributes)
    return ImageCall(image, launcher, kernel, layout)


def _scalar_dtype(value: Any) -> DType:
    """What a scalar is passed as. Raises TypeError for NumPy scalars of other dtypes than kernels have."""
    if isinstance(value, np.generic):
        return as_dtype(value.dtype)
    return bool_ if isinstance(value, bool) else int32 if isinstance(value, int) else float32
