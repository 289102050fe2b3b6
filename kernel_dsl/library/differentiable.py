"""Gradients of the library's functions for JAX and PyTorch: a rule says which values are saved and how the gradient is
computed.

A function asks `host_of` whether its arrays are traced or differentiated, and hands such a call to a rule
(`*_derivatives.py`). For JAX a rule is a `custom_vjp`; for PyTorch a pair of `torch.library` ops, which autograd,
`torch.compile` and `torch.export` treat as single ops.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextvars import Token
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from operator import attrgetter
from typing import Any

import numpy as np

from kernel_dsl import forking
from kernel_dsl.diagnostics import Error
from kernel_dsl.dtypes import as_dtype
from kernel_dsl.errors import BadCallArgument
from kernel_dsl.jax import is_traced, reverse_mode_only, same_axes
from kernel_dsl.jax_primitive import inside_rule
from kernel_dsl.torch_ops import define, differentiate, in_parts, no_forward_mode

from .attention_forward.captured import Captured
from .refusals import no_gradient


class _Functions(dict[str, Callable[..., Any]]):
    """Functions by name. The first use of one imports its module."""

    def __missing__(self, name: str) -> Callable[..., Any]:
        module, word = _INNER.get(name, ("", name))
        found = self[name] = attrgetter(word)(import_module(f"{__package__}{module}"))
        return found


# functions of the library that rules call, by their public names
FUNCTIONS = _Functions()
_INNER = {  # and those that have none: their modules, and their names there
    "gated_with_sums": (".products.matmul", "matmul.with_sums"),
    "linear_cross_entropy_combine_backward": (".losses.linear_cross_entropy", "combine_backward"),
    "linear_cross_entropy_partials_backward": (".losses.linear_cross_entropy", "partials_backward"),
}


class _Plain:
    """A context in which calls of the library run kernels without rules. It is a class because a generator takes four
    times as long.
    """

    __slots__ = ("name", "token")

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None:
        self.token: Token[str] = inside_rule.set(self.name)

    def __exit__(self, *_: object) -> None:
        inside_rule.reset(self.token)


def host_of(*arrays: Any, depth: int = 2) -> str:
    """ "jax" if one of these is traced, "torch" if one is differentiated or is not a plain tensor, else "".

    Tuples and lists stand for their items, `depth` levels of them.
    """
    for x in arrays:
        cls = type(x)
        if x is None or cls is np.ndarray or cls is float:
            continue
        if cls is tuple or cls is list:
            if x and depth and (found := host_of(*x, depth=depth - 1)):
                return found
            continue
        module = cls.__module__
        if module.startswith("torch"):
            torch: Any = sys.modules["torch"]
            plain = cls is torch.Tensor or cls is torch.nn.Parameter
            if not plain or (x.requires_grad and torch.is_grad_enabled()) or watched(torch):
                return "" if inside_rule.get() else "torch"
        elif module.startswith("jax") and is_traced([x]):
            return "" if inside_rule.get() else "jax"
    return ""


def watched(torch: Any) -> bool:
    """Whether more than autograd sees ops: a transform of `torch.func`, `make_fx` and other modes,
    `torch.jit.trace`.
    """
    inner = torch._C
    return (
        inner._are_functorch_transforms_active()
        or inner._len_torch_dispatch_stack() > 0
        or inner._get_tracing_state() is not None
    )


@dataclass(frozen=True)
class Derivative:
    """A function of arrays with its derivative. `key` and the number of arrays decide it, so that its ops are made
    once.

    `forward(*arrays)` gives a tuple; its first `firsts` items have gradients. `backward(gradient, arrays, results)`
    gives a gradient or None for each array; with several `firsts` it gets a list. `shapes(*arrays)`: the results'
    (shape, dtype). `returned`: how many results a caller sees. `plain(*arrays)` gives the first items alone, for calls
    without a derivative. `elementwise`: `backward` uses only the framework's own elementwise operations, which
    compilers fuse with later ones. Result i lies on the device of array i % `devices`. `names`: those of the arrays, for
    errors; arrays without a gradient have names. `optional`: of several `firsts`, `backward` gets None for a gradient
    that is zero and not the first.
    """

    name: str
    key: Any
    forward: Callable[..., tuple[Any, ...]]
    backward: Callable[[Any, Sequence[Any], Sequence[Any]], Sequence[Any]]
    shapes: Callable[..., list[tuple[tuple[int, ...], Any]]]
    gradients: tuple[bool, ...]  # for each array, whether it can have a gradient
    results: int = 1
    returned: int = 1
    plain: Callable[..., tuple[Any, ...]] | None = None
    elementwise: bool = False
    firsts: int = 1
    devices: int = 1
    names: Sequence[str] = ()
    optional: bool = False

    def given(self, gradients: Sequence[Any]) -> Any:
        """The results' gradients in the form that `backward` takes."""
        return gradients[0] if self.firsts == 1 else list(gradients[: self.firsts])

    def __call__(self, host: str, arrays: Sequence[Any]) -> Any:
        made = _in_jax(self, arrays) if host == "jax" else _in_torch(self, arrays)
        return made[0] if self.returned == 1 else tuple(made[: self.returned])


def _in_jax(rule: Derivative, arrays: Sequence[Any]) -> Sequence[Any]:
    jax: Any = sys.modules["jax"]

    visible = rule.results if rule.plain is None else rule.returned

    def run(*given: Any) -> Any:
        with _Plain(rule.name):
            return (rule.plain or rule.forward)(*given)[:visible]

    def bwd(kept: Any, gradients: Any) -> Any:
        given, results = kept
        with _Plain(rule.name):
            own = [_instantiated(jax, g, rule.optional and i > 0) for i, g in enumerate(gradients)]
            return tuple(rule.backward(rule.given(own), given, results))

    def fwd(*given: Any) -> Any:
        _check_constants(rule, [x.perturbed for x in given], jax=True)
        values = tuple(x.value for x in given)
        with _Plain(rule.name):
            results = rule.forward(*values)
        return results[:visible], (values, results)

    function = jax.custom_vjp(run)
    function.defvjp(fwd, bwd, symbolic_zeros=True)  # these also tell which arrays are differentiated
    made = reverse_mode_only(rule.name, function, same_axes(arrays))
    return [*made[: rule.firsts], *(jax.lax.stop_gradient(x) for x in made[rule.firsts :])]


def _instantiated(jax: Any, gradient: Any, optional: bool) -> Any:
    """A gradient as an array; where JAX knows that it is zero, None if it is `optional`."""
    if isinstance(gradient, jax.custom_derivatives.SymbolicZero):
        return None if optional else jax.numpy.zeros(gradient.shape, gradient.dtype)
    return gradient


def check_no_transform(name: str, arrays: Sequence[Any]) -> None:
    """Raise `BadCallArgument` for tensors of transforms of `torch.func` that a call can't take."""
    torch: Any = sys.modules["torch"]
    if torch.autograd.forward_ad._current_level >= 0:
        raise no_forward_mode(name, "torch.autograd.grad or .backward()")
    wrapped = getattr(getattr(torch._C, "_functorch", None), "is_functorch_wrapped_tensor", None)
    if wrapped is not None and any(wrapped(x) for x in arrays):
        what = "a tensor of a transform of torch.func"
        raise BadCallArgument(kernel=name, what=what, hint="call it outside of the transform, with batches as axes")


_ops: dict[Any, Any] = {}
_guard = forking.lock()


def _check_constants(rule: Derivative, wanted: Sequence[bool], *, jax: bool) -> None:
    """Raise `BadCallArgument` for an array without a gradient whose gradient is `wanted`."""
    for has, name, wants in zip(rule.gradients, rule.names, wanted, strict=False):
        if wants and not has:
            raise no_gradient(rule.name, name, jax=jax)


def _in_torch(rule: Derivative, arrays: Sequence[Any]) -> Sequence[Any]:
    if sys.modules["torch"].is_grad_enabled():
        _check_constants(rule, [x.requires_grad for x in arrays], jax=False)
    key = (rule.name, rule.key, rule.gradients, len(arrays))
    op = _ops.get(key)
    if op is None:
        with _guard:  # two threads must not get the same number
            op = _ops.get(key)
            if op is None:
                op = _ops[key] = _torch_op(rule, len(arrays), f"{rule.name}_{len(_ops)}")
    try:
        return op(*arrays)
    except RuntimeError as error:
        if not isinstance(error, Error):  # PyTorch's own, which says less
            check_no_transform(rule.name, arrays)
        raise


def _torch_op(rule: Derivative, count: int, name: str) -> Any:
    """A pair of ops, registered with autograd, fake tensors and compilers."""
    torch: Any = sys.modules["torch"]
    parts = [i for i, has in enumerate(rule.gradients) if has]

    def schema(names: Sequence[str], results: int) -> str:
        made = ", ".join(["Tensor"] * results)
        return f"({', '.join(f'Tensor {n}' for n in names)}) -> {made if results == 1 else f'({made})'}"

    def packed(made: Sequence[Any]) -> Any:
        return made[0] if len(made) == 1 else tuple(made)

    def own(made: Sequence[Any], given: Sequence[Any]) -> Any:
        """Results of an op must be new memory, so a gradient that is an input is copied."""
        seen = {x.untyped_storage().data_ptr() for x in given}
        kept: list[Any] = []
        for x in made:
            place = x.untyped_storage().data_ptr()
            kept.append(x.clone() if place in seen and place else x)
            seen.add(place)
        return packed(kept)

    def run(*given: Any) -> Any:
        with _Plain(rule.name):
            return packed(rule.forward(*given))

    def fake(*given: Any) -> Any:
        shapes = [(shape, getattr(torch, as_dtype(t).name)) for shape, t in rule.shapes(*given)]
        return packed([given[i % rule.devices].new_empty(shape, dtype=t) for i, (shape, t) in enumerate(shapes)])

    def run_backward(*given: Any) -> Any:
        with _Plain(rule.name):
            gradients: list[Any] = [x.contiguous() for x in given[: rule.firsts]]
            if rule.optional:
                gradients[1:] = [x if x.numel() else None for x in gradients[1:]]
            kept = given[rule.firsts :]
            made = rule.backward(rule.given(gradients), kept[:count], kept[count:])
            return own([made[i] for i in parts], given)

    def fake_backward(*given: Any) -> Any:
        like = given[rule.firsts :]
        return packed([torch.empty_like(like[i], memory_format=torch.contiguous_format) for i in parts])

    inputs, results = [f"x{i}" for i in range(count)], [f"y{i}" for i in range(rule.results)]
    gradients = [f"g{i}" for i in range(rule.firsts)]
    defined = partial(define, one_place=rule.devices == 1)
    op = defined(f"kernel_dsl::{name}", schema(inputs, rule.results), run, fake)
    if not parts:
        return (lambda *given: (op(*given),)) if rule.results == 1 else op
    backward_schema = schema([*gradients, *inputs, *results], len(parts))
    back = defined(f"kernel_dsl::{name}_backward", backward_schema, run_backward, fake_backward)

    def keep(ctx: Any, inputs: Any, output: Any) -> None:
        made = output if isinstance(output, tuple) else (output,)
        # without gradients, zeros would be written and read; with several results each needs a gradient
        ctx.set_materialize_grads(rule.firsts > 1 and not rule.optional)
        ctx.save_for_backward(*inputs, *made)
        ctx.mark_non_differentiable(*made[rule.firsts :])

    def twice(ctx: Any, *_: Any) -> Any:
        what = "it has no second derivative, because kernels compute its gradient"
        raise BadCallArgument(kernel=rule.name, what=what, hint="differentiate it once, without create_graph=True")

    def backward(ctx: Any, *gradients: Any) -> Any:
        saved, given = ctx.saved_tensors, list(gradients[: rule.firsts])
        if all(x is None for x in given):  # nothing that depends on the results has a gradient
            return packed([None] * count)
        alone = all(x is None for x in given[1:])
        if rule.optional:
            given[0] = torch.zeros_like(saved[count]) if given[0] is None else given[0]
        # the op raises the error for second derivatives
        if rule.elementwise and alone and not torch.is_grad_enabled():
            return packed(rule.backward(rule.given(given), saved[:count], saved[count:]))
        made = back(*(saved[count].new_empty(0) if x is None else x for x in given), *saved)
        found = dict(zip(parts, made if isinstance(made, (tuple, list)) else (made,), strict=True))
        return packed([found.get(i) for i in range(count)])

    differentiate(op, rule.name, backward, keep, _loops(op))
    differentiate(back, rule.name, twice, lambda ctx, inputs, output: None, _loops(back))
    return (lambda *given: (op(*given),)) if rule.results == 1 else op


def _loops(op: Any) -> Callable[..., Any]:
    """The rule of `torch.vmap`: the op for each part."""
    return lambda info, dims, *args: in_parts(op, info.batch_size, dims, args)


def keyed(static: dict[str, Any]) -> dict[str, Any]:
    """Options as parts of a key. A mutable option is known by its identity."""
    return {
        n: (type(x).__name__, x if isinstance(x, (int, float, str, np.generic, Captured)) else id(x))
        for n, x in static.items()
    }


def check_plain(name: str, how: dict[str, Any]) -> None:
    """Raise `BadCallArgument` for options that a traced or differentiated call can't have."""
    for word in ("out", "stream"):
        if how.get(word) is not None:
            what = f"{word}= in a call that is traced or differentiated"
            raise BadCallArgument(kernel=name, what=what, hint="omit it: the framework chooses the memory of results")
