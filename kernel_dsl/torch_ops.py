"""Ops of PyTorch that are functions of Python, with as little as can be between its dispatcher and them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any

from .errors import BadCallArgument

_kept: list[Any] = []  # registrations, which end with their objects
_PLACES = ("CUDA", "CPU")


def define(
    name: str,
    schema: str,
    run: Callable[..., Any],
    fake: Callable[..., Any],
    mutates: Sequence[str] = (),
    one_place: bool = True,
) -> Any:
    """The custom op `name`, "namespace::op", whose result `run(*args)` makes without gradients: a `CustomOpDef`.

    `run` gives new tensors, and writes what `mutates` names. `one_place`: its tensors are all on one device. The dispatcher
    calls it straight away where nothing but the memory of tensors matters, as in what torch.compile made. All that a custom op
    does beside its function takes longer than a launch: it looks for gradients, is dispatched again, compares the memory of
    results and arguments, and hides from torch.compile.
    """
    torch: Any = sys.modules["torch"]

    def without_gradients(*args: Any, **kwargs: Any) -> Any:
        with torch.no_grad():
            return run(*args, **kwargs)

    op = torch.library.custom_op(name, without_gradients, mutates_args=tuple(mutates), schema=schema)
    check = partial(_check_places, name, torch.Tensor) if one_place else _anywhere

    def of_one_place(*args: Any) -> Any:
        check(args)
        return fake(*args)

    op.register_fake(of_one_place)
    space, _, word = name.partition("::")
    library = torch.library.Library(space, "FRAGMENT")
    _kept.append(library)
    below = _below_autograd(torch, run, without_gradients)
    whole = _autograd_of(op)
    for place in _PLACES:
        library.impl(word, below, place)
        if whole is not None and not mutates:  # what counts the writes to tensors is between autograd and a mutating op
            above = _at_autograd(torch, place, run, whole, check)
            library.impl(word, above, f"Autograd{place}", with_keyset=True)
    return op


def _check_places(name: str, kind: Any, args: Sequence[Any]) -> None:
    """Raise `BadCallArgument` for tensors on two devices; numbers on the CPU go everywhere, as in PyTorch."""
    places = list(dict.fromkeys(x.device for x in args if isinstance(x, kind) and (x.dim() or x.device.type != "cpu")))
    if len(places) > 1:
        what = f"tensors on {' and '.join(map(str, places))}"
        raise BadCallArgument(kernel=name, what=what, hint="move them to one device: `x.to(y.device)`")


def _anywhere(args: Sequence[Any]) -> None:
    """The check of an op whose tensors are on several devices."""


def _below_autograd(torch: Any, run: Callable[..., Any], without_gradients: Callable[..., Any]) -> Callable[..., Any]:
    watched, with_gradients = _watched(torch), torch.is_grad_enabled

    def below_autograd(*args: Any) -> Any:
        if watched() is not None:  # torch.compile looks at each frame that begins here
            dynamo: Any = import_module("torch._dynamo")
            return dynamo.disable(without_gradients)(*args)
        return without_gradients(*args) if with_gradients() else run(*args)

    return _unseen(below_autograd)


def _at_autograd(
    torch: Any, place: str, run: Callable[..., Any], whole: Callable[..., Any], check: Callable[[Sequence[Any]], None]
) -> Callable[..., Any]:
    watched, with_gradients = _watched(torch), torch.is_grad_enabled
    keys, key_set = torch._C.DispatchKey, torch._C.DispatchKeySet
    plain = (key_set(getattr(keys, place)) | key_set(getattr(keys, f"Autograd{place}"))).raw_repr()

    def at_autograd(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        # no gradients; tensors of this place alone; no mode, no vmap, no lazy conjugate: `run` is what follows
        if not with_gradients() and keyset.raw_repr() == plain and watched() is None:
            return run(*args)
        check(args)
        return whole(keyset, *args, **kwargs)

    return _unseen(at_autograd)


def _autograd_of(op: Any) -> Callable[..., Any] | None:
    """What a custom op has for autograd; None where this PyTorch keeps it elsewhere."""
    try:
        return import_module("torch._library.autograd").make_autograd_impl(op._opoverload, op)
    except (ImportError, AttributeError):
        return None


def _watched(torch: Any) -> Callable[[], Any]:
    """None as its result says that torch.compile does not look at what runs."""
    frames = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
    return getattr(frames, "get_eval_frame_callback", lambda: True)


def _unseen(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, whose own frame torch.compile does not take apart."""
    skip = getattr(sys.modules.get("torch._dynamo.eval_frame"), "skip_code", None)
    if skip is not None:
        skip(function.__code__)
    return function
