"""`kd.torch`: the library in PyTorch's place, and functions in its graphs. PyTorch is imported with it, where there is one."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from . import library
from .diagnostics import shown
from .errors import BadCallArgument
from .lazy import once
from .library.attention_forward.captured import capture
from .torch_functions import graph_function

__all__ = ["function", "override"]

try:
    _torch: Any = import_module("torch")
except ImportError:
    _torch = None


def function(body: Callable[..., Any]) -> Any:
    """A function that `torch.compile(fullgraph=True)` takes as `score_mod=`, `mask_mod=` or `epilogue=`; it may decorate one.

    Make it outside of the compiled function. It is a constant there: numbers that it closes over keep the values of the
    first call, and another function compiles again. Raises `BadCallArgument` for a body that closes over arrays, which
    would not be inputs of the graph.
    """
    if not callable(body):
        raise BadCallArgument(kernel="torch.function", what=shown(body), hint="pass a function")
    if capture(body, 0)[1]:
        hint = "compute with positions and numbers, or call the library outside of torch.compile"
        raise BadCallArgument(kernel="torch.function", what="a function that closes over arrays", hint=hint)
    return graph_function(body)


def _product(a: Any, b: Any) -> Any:
    return library.matmul(a, b)


def _addmm(bias: Any, a: Any, b: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    if beta != 1:
        return NotImplemented
    return library.matmul(a, b, c=bias, scale=None if alpha == 1 else alpha)


def _sdpa(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
    scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    if dropout_p or query.dim() != 4 or (attn_mask is not None and attn_mask.dtype is _torch.bool):
        return NotImplemented
    if key.shape[1] != query.shape[1] and not enable_gqa:
        return NotImplemented
    bias = attn_mask[None] if attn_mask is not None and attn_mask.dim() == 1 else attn_mask
    return library.attention(query, key, value, causal=is_causal, scale=scale, bias=bias)


# The function that replaces each op. It may return NotImplemented for arguments that it does not support.
_BELOW: dict[str, Callable[..., Any]] = {
    "aten::mm": _product,
    "aten::bmm": _product,
    "aten::addmm": _addmm,
}
_ABOVE: dict[str, Callable[..., Any]] = {"aten::scaled_dot_product_attention": _sdpa}
_FLOATS = ("float16", "bfloat16", "float32", "float64")


@contextmanager
def override(*names: str) -> Generator[None]:
    """Within the context, call kernels of `kd.library` in place of PyTorch's ops, also in backward passes.

    `names`: of "aten::mm", "aten::bmm", "aten::addmm" (`torch.matmul` and linear layers end in these) and
    "aten::scaled_dot_product_attention". Calls that the library does not support go to PyTorch: integers, dropout,
    masks of bool. Sums of float32 are exact products. Raises `BadCallArgument` for other names.
    """
    known = {**_BELOW, **_ABOVE}
    for name in names:
        if name not in known:
            what, hint = f"no kernel stands for {name!r}", f"one of {', '.join(known)}"
            raise BadCallArgument(kernel="torch.override", what=what, hint=hint)
    if _torch is None:
        raise BadCallArgument(
            kernel="torch.override", what="PyTorch is not installed", hint="python -m pip install torch"
        )
    below, above = _modes()
    with below({n: _BELOW[n] for n in names if n in _BELOW}), above({n: _ABOVE[n] for n in names if n in _ABOVE}):
        yield


def _fits(args: tuple[Any, ...]) -> bool:
    tensors = [x for x in args if isinstance(x, _torch.Tensor)]
    dtypes = {x.dtype for x in tensors}
    same = len(dtypes) == 1 and str(next(iter(dtypes))).removeprefix("torch.") in _FLOATS
    return same and all(
        x.layout is _torch.strided and 0 not in x.shape and x.device.type in ("cpu", "cuda") for x in tensors
    )


@once
def _modes() -> tuple[Any, Any]:
    """Modes of PyTorch that call functions in place of ops, below autograd and above it."""

    class Below(import_module("torch.utils._python_dispatch").TorchDispatchMode):
        """Ops below autograd: ops that differentiation adds are overridden, too."""

        def __init__(self, functions: dict[str, Callable[..., Any]]) -> None:
            super().__init__()
            self.functions = functions

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            made: Any = NotImplemented
            ours = self.functions.get(func._schema.name)
            if ours is not None and func._overloadname == "default" and _fits(args):
                made = ours(*args, **(kwargs or {}))
            return func(*args, **(kwargs or {})) if made is NotImplemented else made

    class Above(import_module("torch.overrides").TorchFunctionMode):
        """Functions that PyTorch decomposes above autograd: ours define their own gradients."""

        def __init__(self, functions: dict[str, Callable[..., Any]]) -> None:
            super().__init__()
            self.functions = {
                getattr(_torch.nn.functional, name.removeprefix("aten::")): f for name, f in functions.items()
            }

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            made: Any = NotImplemented
            ours = self.functions.get(func)
            if ours is not None and _fits((*args, *(kwargs or {}).values())):
                made = ours(*args, **(kwargs or {}))
            return func(*args, **(kwargs or {})) if made is NotImplemented else made

    return Below, Above
