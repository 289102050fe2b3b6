"""PyTorch tensors, on the CPU and on CUDA, in torch's current stream."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

from kernel_dsl.diagnostics import of_kind
from kernel_dsl.dtypes import DType, as_dtype

from ...devices import driver
from ...errors import ArgumentTypeError, ArgumentValueError
from ..array_view import CPU, ArrayView, row_major

# The program has imported torch: this file is loaded for the first tensor.
torch: Any = sys.modules["torch"]

_DTYPES: dict[Any, DType] = {}


def dtype_of(dtype: Any) -> DType:
    """The DType of a torch.dtype."""
    found = _DTYPES.get(dtype)
    if found is None:
        try:
            found = _DTYPES[dtype] = as_dtype(dtype)
        except TypeError:
            raise ArgumentTypeError(
                f"a tensor of {dtype} cannot be passed to a kernel: kernels lack this dtype, so convert it"
            ) from None
    return found


def torch_dtype(dtype: DType) -> Any:
    """The torch.dtype of a DType. Raises ArgumentTypeError if this torch has none."""
    found = getattr(torch, dtype.name, None)
    if found is None:
        raise ArgumentTypeError(f"torch {torch.__version__} has no dtype for {dtype}")
    return found


# The handle of torch's current stream on a GPU, by index. A torch without CUDA has no GPUs.
raw_stream: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 0)


def in_forward_mode() -> bool:
    """Whether PyTorch is in forward-mode differentiation: `torch.func.jvp`, `jacfwd`, `dual_level`."""
    return getattr(torch.autograd.forward_ad, "_current_level", -1) >= 0


def _has_tangent(tensor: Any) -> bool:
    try:
        return torch.autograd.forward_ad.unpack_dual(tensor).tangent is not None
    except RuntimeError:  # `torch.func.linearize` records what happens to it
        return True


def recorder() -> str:
    """What records PyTorch's operations here, and would miss a kernel: `make_fx` or `torch.jit.trace`; else ""."""
    inner = torch._C
    try:
        if inner._get_dispatch_mode(inner._TorchDispatchModeKey.PROXY) is not None:
            return "make_fx"
        return "torch.jit.trace" if inner._get_tracing_state() is not None else ""
    except AttributeError:  # no public interface
        return ""


def check_plain(tensor: Any) -> None:
    """Raise an error for tensors whose memory does not hold their elements, or that PyTorch watches."""
    if found := recorder():
        raise ArgumentValueError(
            f"{found} records PyTorch's operations, and a kernel is none: register it with as_torch_op, and call the op"
        )
    if in_forward_mode() and _has_tangent(tensor):
        raise ArgumentValueError(
            "a tensor with a tangent cannot be passed to a kernel, which has no derivative in forward mode. Pass the primal "
            "of torch.autograd.forward_ad.unpack_dual"
        )
    if tensor.requires_grad and torch.is_grad_enabled():
        raise ArgumentValueError(
            "a tensor that requires grad cannot be passed to a kernel, which autograd cannot see "
            "through. Pass "
            ".detach(), call under torch.no_grad(), or register the kernel with "
            "as_torch_op(backward=...)"
        )
    if tensor.is_nested:
        raise ArgumentTypeError(
            "a nested tensor cannot be passed to a kernel; pass .to_padded_tensor(0), or each of its parts"
        )
    if hasattr(tensor, "__tensor_flatten__"):
        raise _of_others(tensor)
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


def _of_others(tensor: Any) -> ArgumentTypeError:
    """The error for a subclass without memory: a DTensor, an AsyncCollectiveTensor, a quantised tensor of torchao."""
    return ArgumentTypeError(
        f"{of_kind(tensor)} has no memory of its own, and cannot be passed to a kernel: pass the tensor that it "
        "holds, such as .to_local() of a DTensor"
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
        except RuntimeError as error:
            wrapped = getattr(getattr(torch._C, "_functorch", None), "is_functorch_wrapped_tensor", None)
            if wrapped is not None and wrapped(array):
                raise ArgumentTypeError(
                    "a tensor of a transform of torch.func cannot be passed to a kernel: register it with as_torch_op, and "
                    "call the op"
                ) from None
            # a FakeTensor
            raise ArgumentTypeError(f"{of_kind(array)} without memory cannot be passed to a kernel: {error}") from None
        if not address and array.numel():
            raise _of_others(array)
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
        anywhere = partial(torch.empty, shape, dtype=kind, device=place)
        direct = _direct_empty() if device[0] == "cuda" else None
        if direct is None:
            return anywhere
        strides = row_major(shape)
        if driver.device_count() == 1:  # PyTorch's count starts NVML
            return partial(direct, shape, strides, kind)
        current, index = torch._C._cuda_getDevice, device[1]
        return lambda: direct(shape, strides, kind) if current() == index else anywhere()

    def finish(self, array: Any, view: ArrayView, stream: int) -> Any:
        return array

    def likeness(self, arrays: Sequence[Any]) -> Callable[..., bool] | None:
        """A function that tests, in one call, whether as many tensors are like these.

        It compares type, dtype, device, shape, strides, lazy negation and conjugation, and that autograd watches none.
        torch.compile guards its own code with it. None if this torch has no such function, a tensor comes twice, or
        autograd watches one. It keeps no tensor alive. It may refuse like tensors: one that comes twice, or in another
        inference mode, or one that autograd would watch if gradients were on.
        """
        if not arrays or not _can_compare() or any(t.requires_grad for t in arrays):
            return None
        like = _guard(arrays)
        return like if like(*arrays) else None


def _direct_empty() -> Callable[..., Any] | None:
    """The allocator of torch.compile's own code, on the current GPU, in a third of the time of `torch.empty`."""
    guards = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
    return getattr(guards, "_empty_strided_cuda", None)


def _guard(tensors: Sequence[Any]) -> Callable[..., bool]:
    guards = torch._C._dynamo.guards.TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None)
    return guards.check


@lru_cache(1)
def _can_compare() -> bool:
    """Whether this torch's guards test all that `likeness` promises: they are no public interface."""
    try:
        one = torch.empty((2, 3))
        like = _guard([one])
        others = [
            torch.empty((3, 3)),
            torch.empty((3, 2)).T,
            torch.empty((2, 3), dtype=torch.float64),
            torch.empty((2, 3), device="meta"),
            torch.empty((2, 3), requires_grad=True),
            torch.nn.Parameter(torch.empty((2, 3)), requires_grad=False),
            torch._neg_view(one),
        ]
        with torch.enable_grad():
            return like(torch.empty((2, 3))) and not any(like(other) for other in others)
    except (AttributeError, TypeError, RuntimeError):
        return False


INTEROP = _Torch()
