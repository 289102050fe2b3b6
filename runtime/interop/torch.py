"""PyTorch tensors, on the CPU and on CUDA, in torch's current stream."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from kernel_dsl.dtypes import DType, as_dtype

from ..arrays import CPU, ArrayView, row_major
from ..errors import ArgumentTypeError, ArgumentValueError

# torch is imported already: this file is only loaded for a tensor that came in.
torch: Any = sys.modules["torch"]

_DTYPES: dict[Any, DType] = {}


def dtype_of(dtype: Any) -> DType:
    """The DType of a torch.dtype."""
    found = _DTYPES.get(dtype)
    if found is None:
        try:
            found = _DTYPES[dtype] = as_dtype(dtype)
        except TypeError:
            raise ArgumentTypeError(f"a tensor of {dtype} is not one that a kernel can hold") from None
    return found


def torch_dtype(dtype: DType) -> Any:
    """The torch.dtype of a DType. Raises ArgumentTypeError where this torch has none."""
    found = getattr(torch, dtype.name, None)
    if found is None:
        raise ArgumentTypeError(f"torch {torch.__version__} has no dtype for {dtype}")
    return found


# The handle of torch's current stream on a GPU, by index. A torch without CUDA has no GPUs.
raw_stream: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 0)


def check_plain(tensor: Any) -> None:
    """Refuse tensors whose memory is not what their elements say, or that autograd watches."""
    if tensor.requires_grad and torch.is_grad_enabled():
        raise ArgumentValueError(
            "a tensor that requires grad cannot be passed to a kernel, which autograd cannot see "
            "through. Pass "
            ".detach(), call under torch.no_grad(), or register the kernel with "
            "as_torch_op(backward=...)"
        )
    if tensor.layout is not torch.strided:
        raise ArgumentTypeError(f"a {tensor.layout} tensor cannot be passed to a kernel; pass .to_dense()")
    if tensor.is_neg() or tensor.is_conj():
        raise ArgumentValueError(
            "a lazily negated or conjugated tensor cannot be passed to a kernel; pass .resolve_conj().resolve_neg()"
        )
    if tensor.device.type not in ("cpu", "cuda"):
        raise ArgumentTypeError(
            f"a tensor on {tensor.device} cannot be passed to a kernel: it must be on the CPU or a CUDA GPU"
        )


class _Torch:
    name = "torch"

    def __init__(self) -> None:
        self.current_stream = raw_stream

    def view(self, array: Any, stream: int) -> ArrayView:
        check_plain(array)
        device = array.device
        place = ("cuda", device.index) if device.type == "cuda" else CPU
        try:
            address = array.data_ptr()
        except RuntimeError as error:  # a FakeTensor, or one under a functorch transform
            raise ArgumentTypeError(
                f"a {type(array).__name__} without memory cannot be passed to a kernel: {error}"
            ) from None
        return ArrayView(
            address,
            tuple(array.shape),
            array.stride(),
            dtype_of(array.dtype),
            place,
            "torch",
            False,
            array,
        )

    def empty(self, shape: tuple[int, ...], dtype: DType, device: tuple[str, int], stream: int) -> Any:
        kind = torch_dtype(dtype)
        if device[0] == "cpu":
            return torch.empty(shape, dtype=kind)
        index = device[1]
        if stream == raw_stream(index):
            return torch.empty(shape, dtype=kind, device=torch.device("cuda", index))
        # Torch's allocator reuses memory in stream order: the output must belong to the stream that
        # writes it.
        with torch.cuda.stream(torch.cuda.ExternalStream(stream, device=index)):
            return torch.empty(shape, dtype=kind, device=torch.device("cuda", index))

    def allocator(self, shape: tuple[int, ...], dtype: DType, device: tuple[str, int]) -> Callable[[], Any]:
        place = torch.device("cuda", device[1]) if device[0] == "cuda" else torch.device("cpu")
        kind = torch_dtype(dtype)
        direct = _direct_empty() if device[0] == "cuda" else None
        if direct is not None:
            return partial(direct, shape, row_major(shape), kind)
        return partial(torch.empty, shape, dtype=kind, device=place)

    def finish(self, array: Any, view: ArrayView, stream: int) -> Any:
        return array


def _direct_empty() -> Callable[..., Any] | None:
    """What torch.compile's own code allocates with: a third of `torch.empty`'s cost, on the current GPU.

    Only where there is one GPU, so that the current one is the right one.
    """
    if torch.cuda.device_count() != 1:
        return None
    guards = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
    return getattr(guards, "_empty_strided_cuda", None)


INTEROP = _Torch()
