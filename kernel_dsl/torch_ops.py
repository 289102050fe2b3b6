"""Ops of PyTorch that are Python functions, with few steps between the dispatcher and the function."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any

from .errors import BadCallArgument
from .torch_native import add_plain, teach_inductor
from .unseen import unwatched, watcher

_kept: dict[str, list[Any]] = {}  # registrations by op, which end with their objects
_PLACES = ("CUDA", "CPU")


def define(
    name: str,
    schema: str,
    run: Callable[..., Any],
    fake: Callable[..., Any],
    mutates: Mapping[str, int] | None = None,
    one_place: bool = True,
) -> Any:
    """The custom op `name`, "namespace::op", whose result `run(*args)` makes without gradients: a `CustomOpDef`.

    `run` returns new tensors, and writes the arguments in `mutates`, which has their numbers by name. `one_place`: its
    tensors are all on one device.

    Beside calling its function, a custom op of PyTorch looks for gradients, is dispatched again, compares the memory of results
    and arguments, and hides from torch.compile. All this takes longer than a launch. So the dispatcher calls `run` directly if
    only the memory of the tensors matters, as in code that torch.compile made.
    """
    torch: Any = sys.modules["torch"]

    def without_gradients(*args: Any, **kwargs: Any) -> Any:
        with torch.no_grad():
            return run(*args, **kwargs)

    op = torch.library.custom_op(name, without_gradients, mutates_args=tuple(mutates or ()), schema=schema)
    check = partial(_check_places, name, torch.Tensor) if one_place else _anywhere

    def of_one_place(*args: Any) -> Any:
        teach_inductor()
        check(args)
        return fake(*args)

    op.register_fake(of_one_place)
    add_plain(op)
    for old in _kept.pop(name, ()):  # an op that is defined anew
        old._destroy()
    space, _, word = name.partition("::")
    library = torch.library.Library(space, "FRAGMENT")
    _kept[name] = [library]
    below = _below_autograd(torch, run, without_gradients)
    whole = _autograd_of(op)
    for place in _PLACES:
        library.impl(word, below, place)
        if whole is not None:  # what counts the writes to tensors is between autograd and a mutating op
            above = _writing(torch, name, whole, mutates) if mutates else _at_autograd(torch, place, run, whole, check)
            library.impl(word, above, f"Autograd{place}", with_keyset=True)
    return op


def differentiate(
    op: Any, name: str, backward: Callable[..., Any], setup_context: Callable[..., Any], vmap: Callable[..., Any]
) -> None:
    """Give an op of `define` a derivative in reverse mode, also under the transforms of `torch.func`.

    `name`: the op's in errors. `backward` and `setup_context` are as for `torch.library.register_autograd`, `vmap` as for
    `register_vmap`. A custom op has no derivative under these transforms, and an `autograd.Function` has: they are given
    one, whose forward is the op.
    """
    torch: Any = sys.modules["torch"]
    op.register_autograd(backward, setup_context=setup_context)
    op.register_vmap(vmap)

    def jvp(ctx: Any, *tangents: Any) -> Any:
        raise no_forward_mode(name, "torch.autograd.grad, .backward(), torch.func.grad or vjp")

    rules = {"forward": op, "setup_context": setup_context, "backward": backward, "vmap": vmap, "jvp": jvp}
    function = type(op._name, (torch.autograd.Function,), {word: staticmethod(rule) for word, rule in rules.items()})
    library = torch.library.Library(op._namespace, "FRAGMENT")
    library.impl(op._name, _under_transforms(torch, op, name, function), "FuncTorchDynamicLayerFrontMode")
    _kept[op._qualname].append(library)


def _under_transforms(torch: Any, op: Any, name: str, function: Any) -> Callable[..., Any]:
    """What calls of an op become under `torch.func`: an `autograd.Function`, which `functionalize` alone does not know."""
    try:
        kinds = torch._C._functorch.TransformType
        stack = torch._C._functorch.get_interpreter_stack
        interpreter = import_module("torch._functorch.pyfunctorch").retrieve_current_functorch_interpreter
        functional = import_module("torch._subclasses.functional_tensor").FunctorchFunctionalizeAPI
    except (ImportError, AttributeError):  # this PyTorch has them elsewhere
        return function.apply

    def call(*args: Any) -> Any:
        active = [one.key() for one in stack()]  # from the outermost to the innermost
        if active[-1] == kinds.Functionalize:
            rule = functional(interpreter())
            plain = rule.unwrap_tensors(args)
            with rule.redispatch_to_next():
                made = op(*plain)
            return rule.wrap_tensors(made)
        if active[-1] == kinds.Grad:
            while active and active[-1] == kinds.Grad:
                active.pop()
            if active and active[-1] == kinds.Functionalize:
                what = "torch.func.functionalize of a gradient"
                raise BadCallArgument(kernel=name, what=what, hint="take the gradient of functionalize(f)")
        return function.apply(*args)

    return call


def no_forward_mode(name: str, instead: str) -> BadCallArgument:
    """The error for a call that is differentiated forwards."""
    what = "it has no derivative in forward mode (jvp, jacfwd, hessian)"
    return BadCallArgument(kernel=name, what=what, hint=f"use reverse mode: {instead}")


def in_parts(op: Any, size: int, dims: Sequence[Any], args: Sequence[Any], writes: bool = False) -> Any:
    """The rule of `torch.vmap` that calls the op for each part, and puts the results together along a first axis.

    `writes`: whether the op writes its inputs; it then gets the parts where they lie.
    """
    torch: Any = sys.modules["torch"]
    moved = [a if d is None else a.movedim(d, 0) for a, d in zip(args, dims, strict=True)]
    if not writes:
        moved = [a if d is None else a.contiguous() for a, d in zip(moved, dims, strict=True)]
    if not size:
        parts = [a if d is None else a.new_empty(a.shape[1:]) for a, d in zip(moved, dims, strict=True)]
        made = _listed(op(*(a.to("meta") if isinstance(a, torch.Tensor) else a for a in parts)))
        place = next(a.device for a, d in zip(moved, dims, strict=True) if d is not None)
        found = [torch.empty((0, *x.shape), dtype=x.dtype, device=place) for x in made]
    else:
        rows = [_listed(op(*(a if d is None else a[i] for a, d in zip(moved, dims, strict=True)))) for i in range(size)]
        found = [torch.stack(column) for column in zip(*rows, strict=True)]
    if not found:
        return None, None
    return (found[0], 0) if len(found) == 1 else (tuple(found), (0,) * len(found))


def _listed(made: Any) -> list[Any]:
    return list(made) if isinstance(made, (tuple, list)) else [] if made is None else [made]


def _check_places(name: str, kind: Any, args: Sequence[Any]) -> None:
    """Raise `BadCallArgument` for tensors on two devices; numbers on the CPU go everywhere, as in PyTorch."""
    places = list(dict.fromkeys(x.device for x in args if isinstance(x, kind) and (x.dim() or x.device.type != "cpu")))
    if len(places) > 1:
        what = f"tensors on {' and '.join(map(str, places))}"
        raise BadCallArgument(kernel=name, what=what, hint="move them to one device: `x.to(y.device)`")


def _anywhere(args: Sequence[Any]) -> None:
    """The check of an op whose tensors are on several devices."""


def _below_autograd(torch: Any, run: Callable[..., Any], without_gradients: Callable[..., Any]) -> Callable[..., Any]:
    watched, with_gradients = watcher(torch), torch.is_grad_enabled

    def below_autograd(*args: Any) -> Any:
        if watched() is not None:  # torch.compile looks at each frame that begins here
            return unwatched(import_module("torch._dynamo"), without_gradients)(*args)
        return without_gradients(*args) if with_gradients() else run(*args)

    return _unseen(below_autograd)


def _at_autograd(
    torch: Any, place: str, run: Callable[..., Any], whole: Callable[..., Any], check: Callable[[Sequence[Any]], None]
) -> Callable[..., Any]:
    watched, with_gradients = watcher(torch), torch.is_grad_enabled
    keys, key_set = torch._C.DispatchKey, torch._C.DispatchKeySet
    plain = (key_set(getattr(keys, place)) | key_set(getattr(keys, f"Autograd{place}"))).raw_repr()

    def at_autograd(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        # without gradients, modes, vmap and lazy conjugates, and with tensors of this place alone, `run` comes next
        if not with_gradients() and keyset.raw_repr() == plain and watched() is None:
            return run(*args)
        check(args)
        return whole(keyset, *args, **kwargs)

    return _unseen(at_autograd)


def _writing(torch: Any, name: str, whole: Callable[..., Any], mutates: Mapping[str, int]) -> Callable[..., Any]:
    """The autograd of an op that writes arguments. PyTorch's own takes the gradient of what is written as it is."""

    def at_autograd(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        for word, number in mutates.items():
            if args[number].requires_grad and torch.is_grad_enabled():
                what = f"it writes {word!r}, which requires grad, and has no derivative"
                hint = f"call it under `torch.no_grad()`, or with `{word}.detach()`"
                raise BadCallArgument(kernel=name, what=what, hint=hint)
        return whole(keyset, *args, **kwargs)

    return _unseen(at_autograd)


def _autograd_of(op: Any) -> Callable[..., Any] | None:
    """What a custom op has for autograd; None where this PyTorch keeps it elsewhere."""
    try:
        return import_module("torch._library.autograd").make_autograd_impl(op._opoverload, op)
    except (ImportError, AttributeError):
        return None


def _unseen(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, whose own frame torch.compile does not take apart."""
    skip = getattr(sys.modules.get("torch._dynamo.eval_frame"), "skip_code", None)
    if skip is not None:
        skip(function.__code__)
    return function
