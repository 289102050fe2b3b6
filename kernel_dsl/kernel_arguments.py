"""Checks of the arguments of `kd.kernel`, and their error texts."""

from __future__ import annotations

from typing import Any

from .arguments import static_int
from .boundary import public
from .definition import Definition, axes, named_axes
from .diagnostics import shown
from .errors import BadCallArgument, KernelArgument, KernelValue
from .interpret_params import InterpretParams
from .source import parameters_of
from .variables import variables

CALL = ("out", "stream", "interpret")  # the names of a call's own arguments


def as_aliases(given: Any) -> tuple[tuple[int, int], ...]:
    """`input_output_aliases` as pairs of leaf numbers. Raises `KernelArgument`."""
    if given is None:
        return ()
    pairs = list(given.items()) if isinstance(given, dict) else [(None, None)]
    numbers = [(static_int(i), static_int(o)) for i, o in pairs]
    found = tuple(sorted((i, o) for i, o in numbers if i is not None and o is not None))
    if len(found) != len(pairs):
        hint = "a dict from the number of an input to that of an output"
        raise KernelArgument(what=f"input_output_aliases={shown(given)}", hint=hint)
    return found


@public
def by_position(definition: Definition, args: Any, named: Any) -> tuple[Any, ...]:
    """A call's inputs in order: `args`, then those that the dict `named` gives by the names of the body's parameters.

    Raises `BadCallArgument` for a name that is no parameter or is given twice, and for a missing input before a given one.
    """
    if not named:
        return args
    positional = [p.name for p in definition.parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    names = positional[: _most_inputs(definition, len(positional))]
    for name in named:
        what = hint = ""
        if name not in names:
            what, hint = f"{name!r} is not one of its inputs", _nearest(name, names, name in positional)
        elif name in names[: len(args)]:
            first = f"the first {len(args)} inputs are" if len(args) > 1 else "the first input is"
            what, hint = f"{name!r} is given twice", f"{first} given by position"
        if what:
            raise BadCallArgument(kernel=definition.name, what=what, hint=hint)
    given = names[len(args) :][: len(named)]
    missing = next((name for name in given if name not in named), None)
    if missing is not None:
        what = f"the input {missing!r} is missing"
        raise BadCallArgument(kernel=definition.name, what=what, hint=f"give `{missing}`")
    return (*args, *(named[name] for name in given))


def _most_inputs(definition: Definition, parameters: int) -> int:
    """How many of the body's parameters may be inputs: as many as `out_type` takes, or all but outputs and scratch."""
    made, scratch = definition.out_type, definition.scratch_types
    if not callable(made):
        outputs = len(made) if isinstance(made, (tuple, list)) else made is not None
        return parameters - outputs - (len(scratch) if isinstance(scratch, (tuple, list)) else 0)
    taken = parameters_of(made)
    unknown = not taken or any(p.kind is p.VAR_POSITIONAL for p in taken)
    return parameters if unknown else sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in taken)


def _nearest(name: str, names: list[str], other: bool) -> str:
    """The hint for a name that is no input. `other`: it names another parameter of the body."""
    from difflib import get_close_matches

    near = [] if other else get_close_matches(name, [*names, *CALL], 1)
    if near:
        return f"did you mean `{near[0]}`?"
    return f"its inputs are {', '.join(names) or 'nameless'}; arrays for its outputs are given by `out=`"


def either(new: str, value: Any, old: str, old_value: Any) -> Any:
    if old_value is None:
        return value
    if value is not None and value != ():
        raise KernelArgument(what=f"both `{new}` and `{old}` are given", hint=f"`{old}` is the old name of `{new}`")
    return old_value


def check_interpret(interpret: Any, name: str) -> None:
    """Raise `KernelArgument` for a wrong value of `interpret=`."""
    if not (interpret is None or isinstance(interpret, (bool, InterpretParams))):
        hint = "None, True, False or `kd.InterpretParams(...)`"
        raise BadCallArgument(kernel=name, what=f"interpret={shown(interpret)}", hint=hint)


def axis_names(names: Any, word: str) -> tuple[str, ...]:
    given = (names,) if isinstance(names, str) else names
    if not isinstance(given, (tuple, list)) or not all(isinstance(n, str) for n in given):
        raise KernelArgument(what=f"{word}={shown(names)}", hint="names are strings")
    given = tuple(str.__str__(n) for n in given)
    if len(set(given)) != len(given):
        raise KernelValue(what=f"{word}={given} names an axis twice", hint="give every axis its own name")
    return given


def check_threads(num_threads: Any, thread_name: Any) -> None:
    if num_threads is not None:
        if isinstance(num_threads, bool) or not isinstance(num_threads, int):
            raise KernelArgument(what=f"num_threads={shown(num_threads)}", hint="an int: the warpgroups of a block")
        # 1024 CUDA threads a block are 8 warpgroups (CUDA C++ Programming Guide, compute capabilities)
        if not 1 <= num_threads <= 8:
            raise KernelValue(what=f"num_threads={shown(num_threads)}", hint="a block has 1 to 8 warpgroups")
    if thread_name is not None and not isinstance(thread_name, str):
        raise KernelArgument(what=f"thread_name={shown(thread_name)}", hint="a string")
    if thread_name is not None and num_threads is None:
        raise KernelArgument(what="`thread_name` without `num_threads`", hint="give the number of warpgroups")


def check_static(definition: Definition) -> None:
    """Check the axes that are not functions of the inputs."""
    made: dict[str, Any] = {"grid": (), "cluster": ()}
    for word in made:
        sizes = getattr(definition, word)
        if not callable(sizes) and not variables(sizes):
            made[word] = axes(sizes, getattr(definition, f"{word}_names"), word, ())
    named_axes(made["grid"], made["cluster"], definition.thread_name, definition.num_threads or 1)
