"""A kernel as a `torch.library` custom op, for `torch.compile(fullgraph=True)`, export and CUDA graphs."""

from __future__ import annotations

import ctypes
import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from keyword import iskeyword
from types import SimpleNamespace
from typing import Any, cast

from kernel_dsl.definition import Definition, declared_outputs, is_leaf, output_structs
from kernel_dsl.errors import NoHostCode, VariableUse
from kernel_dsl.torch_names import take_name
from kernel_dsl.torch_native import add_twin
from kernel_dsl.torch_ops import define, differentiate, in_parts
from kernel_dsl.tree import flatten, unflatten
from kernel_dsl.variables import Variable, evaluate

from .errors import ArgumentTypeError, ArgumentValueError
from .plan import recording

_LARGEST = 2**31 - 1
# By a parameter's annotation, or its text: the type in an op's schema.
_SCALARS: dict[Any, str] = {
    float: "float",
    "float": "float",
    int: "SymInt",
    "int": "SymInt",
    bool: "bool",
    "bool": "bool",
}


def as_torch_op(
    kernel: Any,
    definition: Definition,
    name: str,
    *,
    inputs: Sequence[str] | int | None = None,
    backward: Callable[..., Any] | None = None,
    setup_context: Callable[..., Any] | None = None,
    mutates_args: Sequence[str] = (),
    with_axis: Callable[[tuple[bool, ...], Sequence[Any]], Any] | None = None,
) -> Any:
    """Register `kernel` as the op `name` ("namespace::op") and return the op, a `CustomOpDef`.

    The op takes the kernel's inputs: tensors, except for parameters that the body annotates as float, int or bool. It
    returns new tensors: one, or a tuple. `inputs`: the inputs' names or number, if the body's signature does not show
    them. `backward(ctx, *gradients)` makes it differentiable; `ctx` has the values that `setup_context(ctx, inputs,
    output)` kept, by default all tensors in `ctx.saved_tensors` (inputs, then outputs) and the scalars in
    `ctx.inputs_given` (None for tensors). `mutates_args`: names of inputs that are written in place. Each must have an
    output in `input_output_aliases`, which is then no result. `with_axis(mapped, args)`: the kernel with one more axis
    for `torch.vmap`, or None if it can't have one; then the op is called for each part. Raises ArgumentTypeError for a
    body whose signature does not separate inputs from outputs.
    """
    torch: Any = _torch()
    from .arrays.interop.torch import in_forward_mode

    _check_names(name, backward=backward, setup_context=setup_context)
    names, outputs, written = _arrays(definition, name, inputs, mutates_args)
    if written and backward is not None:
        raise ArgumentTypeError(f"op {name!r} mutates its inputs, and ops with a backward= do not")
    schema = f"({', '.join(_argument(definition, n, i in written) for i, n in enumerate(names))}) -> {_result(outputs)}"

    plain = not written and "Tensor " in schema
    one: Any = torch.Tensor if outputs == 1 else None

    def run(*given: Any) -> Any:
        fast = kernel._fast if plain else None  # pyright: ignore[reportPrivateUsage]
        if fast is not None and not fast.recording.active:  # as `Kernel.__call__`, which is called for all else
            result = fast.latest(given, None, None)
            if type(result) is one:
                return result
            if result is not fast.miss:
                return counted(_flat(result))
        if in_forward_mode():  # PyTorch would treat an op's results as constants
            raise ArgumentValueError(
                f"op {name!r} has no derivative in forward mode (torch.func.jvp): use reverse mode"
            )
        if plain:
            result = kernel(*given)
            return result if type(result) is one else counted(_flat(result))
        made, tree = fresh(given)  # there is no input tensor to imitate, or some outputs exist already
        places = {o: given[i] for i, o in written.items()}
        kernel(*given, out=unflatten(tree, [places.get(o, x) for o, x in enumerate(made)]))
        return counted([x for o, x in enumerate(made) if o not in places])

    def fake(*given: Any) -> Any:
        return counted([x for o, x in enumerate(fresh(given)[0]) if o not in written.values()])

    def fresh(given: Sequence[Any]) -> tuple[list[Any], Any]:
        shapes, tree = _symbolic(definition, given) or _plain_shapes(definition, given)
        device = next((a.device for a in given if isinstance(a, torch.Tensor)), None)
        return [torch.empty(n, dtype=getattr(torch, dtype.name), device=device) for n, dtype in shapes], tree

    def counted(made: Sequence[Any]) -> Any:
        if len(made) != outputs:
            raise ArgumentTypeError(
                f"op {name!r} gives {outputs} tensors by the body's signature, and out_type gave {len(made)}: "
                "let out_type give a tuple or list, of which the body takes each leaf by itself"
            )
        return made[0] if len(made) == 1 else tuple(made) or None

    take_name(torch, name, definition)
    op = define(name, schema, run, fake, {names[i]: i for i in written})
    if plain and outputs and not definition.params.profile_space:
        compiled = partial(_compiled, kernel, definition.name)
        add_twin(op, schema, run, fake, compiled, ctypes.addressof(recording.seen_by_host_code))
    wider = None if backward else with_axis

    def vmap(info: Any, dims: Sequence[Any], *args: Any) -> Any:
        return _in_parts(op, wider, info.batch_size, dims, args)

    if backward is not None:
        differentiate(op, name, backward, setup_context or _keep_all, vmap)
    else:
        op.register_vmap(partial(_written_parts, op, name, {i: names[i] for i in written}) if written else vmap)
    return op


def _compiled(kernel: Any, name: str, given: Sequence[Any], device: int) -> tuple[Any, Any]:
    """(the IR, the machine code) of the kernel called `name`, for a call on a GPU. Raises `NoHostCode`."""
    from .devices.devices import cuda_device

    if not kernel._has_host_code():
        what, hint = "a call with sizes that depend on the values of scalars", "the op stays Python"
        raise NoHostCode(kernel=name, what=what, hint=hint)
    stages = kernel.lower(*given, target=cuda_device(device).target.name)
    return stages.ir, stages.assembled()


def _check_names(name: Any, **functions: Any) -> None:
    """Raise `ArgumentTypeError` for a wrong name of an op, and for arguments that are no functions."""
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_]\w*::[A-Za-z_]\w*", name, re.ASCII):
        raise ArgumentTypeError(f"an op's name must be 'namespace::op', with two identifiers, not {name!r}")
    for what, function in functions.items():
        if function is not None and not callable(function):
            raise ArgumentTypeError(f"{what}= of op {name!r} must be a function, and is {function!r}")


def _arrays(
    definition: Definition, name: str, inputs: Any, mutates_args: Sequence[str]
) -> tuple[list[str], int, dict[int, int]]:
    """The inputs' names, the number of results, and the inputs that are written, as `_written` gives them.

    Raises `ArgumentTypeError` for names that do not fit the body.
    """
    names, outputs = _split(definition, inputs)
    if outputs < 0 or len(set(names)) < len(names) or not all(n.isidentifier() and not iskeyword(n) for n in names):
        raise ArgumentTypeError(f"inputs={inputs!r} of op {name!r} does not fit the body of {definition.name!r}")
    written = _written(definition, name, names, mutates_args)
    return names, outputs - len(written), written


def _plain_shapes(definition: Definition, given: Sequence[Any]) -> tuple[list[Any], Any]:
    """(shape, dtype) of each output, in ints, and their structure."""
    structs, tree = output_structs(definition, [_struct(a) for a in given])
    return [(s.shape, s.dtype) for s in structs if s is not None], tree


def _symbolic(definition: Definition, given: Sequence[Any]) -> tuple[list[Any], Any] | None:
    """As `_plain_shapes`, in the SymInts of fake tensors, so that one graph serves all sizes.

    `out_type` gets variables in their place, or the Dims of `shapes=`, whose range and divisor become guards. None
    without SymInts, or if `out_type` needs a value: then a graph is for one size.
    """
    torch: Any = _torch()
    values: dict[str, Any] = {}
    names: dict[str, str] = {}  # names of variables, by the expressions that they stand for

    def extent(n: Any) -> Any:
        if type(n) is not torch.SymInt:
            return int(n)
        name = names.setdefault(str(n), f"size_{len(names)}")
        values[name] = n
        return Variable(name, 0, _LARGEST)

    structs: list[Any] = []
    seen: list[Any] = []
    for value in given:
        struct = _struct(value, extent)
        structs.append(struct)
        seen.append(SimpleNamespace(shape=tuple(getattr(value, "shape", ())), dtype=struct.dtype))
    if not values:
        return None
    try:
        if definition.shapes:
            values |= definition.shapes.values(seen)
            structs = definition.shapes.told(structs)
        declared, tree = declared_outputs(definition, structs)
        return [(evaluate(s.shape, values), s.dtype) for s in declared], tree
    except VariableUse:
        return None


def _written(definition: Definition, op: str, names: Sequence[str], mutates: Any) -> dict[int, int]:
    """For each mutated input, by number: the number of its output."""
    if isinstance(mutates, str) or not isinstance(mutates, (tuple, list)):
        raise ArgumentTypeError(f"mutates_args= of op {op!r} is a list of inputs' names, and not {mutates!r}")
    aliases = dict(definition.aliases)
    made: dict[int, int] = {}
    for word in cast("Sequence[Any]", mutates):
        number = names.index(word) if word in names else -1
        if number not in aliases:
            raise ArgumentTypeError(
                f"mutates_args= of op {op!r} names {word!r}, which is not one of its inputs ({', '.join(names)}) to which "
                "input_output_aliases gives an output"
            )
        made[number] = aliases[number]
    return made


def _in_parts(op: Any, with_axis: Any, size: int, dims: Sequence[Any], args: Sequence[Any]) -> Any:
    """The rule of `torch.vmap`: a kernel with one more axis, or the op for each part."""
    torch: Any = _torch()
    moved = [a if d is None else a.movedim(d, 0).contiguous() for a, d in zip(args, dims, strict=True)]
    flags = tuple(d is not None for d in dims)
    kernel = None
    if with_axis is not None and size and all(type(a) is torch.Tensor for a in moved if hasattr(a, "shape")):
        kernel = with_axis(flags, moved)
    if kernel is not None:
        with torch.no_grad():
            made = _flat(kernel(*moved))
        return (made[0], 0) if len(made) == 1 else (tuple(made), (0,) * len(made))
    return in_parts(op, size, dims, args)


def _written_parts(
    op: Any, name: str, written: Mapping[int, str], info: Any, dims: Sequence[Any], *args: Any
) -> tuple[Any, Any]:
    """The rule of `torch.vmap` for an op that writes inputs, by number. Raises ArgumentValueError for one without the axis."""
    for number, word in written.items():
        if dims[number] is None:
            raise ArgumentValueError(f"torch.vmap of op {name!r} does not map {word!r}, which all parts would write")
    return in_parts(op, info.batch_size, dims, args, writes=True)


def _torch() -> Any:
    module = sys.modules.get("torch")
    if module is None:
        import importlib

        try:
            module = importlib.import_module("torch")
        except ImportError:
            raise ArgumentTypeError("as_torch_op needs PyTorch, which is not installed here") from None
    return module


def _split(definition: Definition, inputs: Sequence[str] | int | None) -> tuple[list[str], int]:
    """The inputs' names and the number of outputs."""
    listed = _positional(definition.body)
    scratch: Any = definition.scratch_types
    if isinstance(scratch, Mapping):
        used = 0
    elif isinstance(scratch, (tuple, list)):
        used = len(cast("Sequence[Any]", scratch))
    else:
        used = None if callable(scratch) and not hasattr(scratch, "shape") else 1
    if isinstance(inputs, int):
        if inputs < 0 or (listed is not None and inputs > len(listed)):
            raise ArgumentTypeError(f"the body of {definition.name!r} does not take {inputs} inputs")
        names = [f"x{i}" for i in range(inputs)] if listed is None else listed[:inputs]
    elif isinstance(inputs, (tuple, list)) and {type(n) for n in inputs} <= {str}:
        names = list(inputs)
    elif inputs is not None:
        raise ArgumentTypeError(f"inputs= is the inputs' names, in a list, or their number, and not {inputs!r}")
    else:
        names = _infer_inputs(definition, listed, used)
    outputs = _count_outputs(definition)
    if outputs is None:
        if listed is None or used is None:
            raise _unclear(definition)
        outputs = len(listed) - used - len(names)
    return [_plain(n) for n in names], outputs


def _infer_inputs(definition: Definition, listed: list[str] | None, scratch: int | None) -> list[str]:
    outputs = _count_outputs(definition)
    if listed is None:
        raise _unclear(definition)
    if outputs is not None and scratch is not None:
        return listed[: len(listed) - outputs - scratch]
    for function in (definition.out_type, definition.grid, scratch):
        # A function of the inputs' structs has one parameter for each.
        if callable(function) and not hasattr(function, "shape"):
            taken = _positional(function)
            if taken is not None:
                return listed[: len(taken)]
    raise _unclear(definition)


def _count_outputs(definition: Definition) -> int | None:
    """The number of result tensors; None if it depends on the inputs."""
    out_type: Any = definition.out_type
    if callable(out_type) and not hasattr(out_type, "shape"):
        return None
    return len(flatten(out_type, is_leaf)[0])  # not `output_structs`: extents may depend on a call


def _positional(function: Callable[..., Any]) -> list[str] | None:
    """The names of a function's positional parameters; None if it takes any number."""
    found: list[str] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            return None
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            found.append(parameter.name)
    return found


def _unclear(definition: Definition) -> ArgumentTypeError:
    return ArgumentTypeError(
        f"the signature of {definition.name!r} does not tell inputs from outputs; name the inputs: "
        "as_torch_op(name, inputs=('x', 'y'))"
    )


def _plain(name: str) -> str:
    return name.removesuffix("_ref").removesuffix("_gmem") or name


def _argument(definition: Definition, name: str, written: bool) -> str:
    notes: Mapping[str, Any] = getattr(definition.body, "__annotations__", {})
    note = next((notes[n] for n in notes if _plain(n) == name), None)
    return f"{f'Tensor({name}!)' if written else _SCALARS.get(note, 'Tensor')} {name}"


def _result(outputs: int) -> str:
    if outputs == 1:
        return "Tensor"
    return f"({', '.join(['Tensor'] * outputs)})"


def _flat(result: Any) -> list[Any]:
    return flatten(result)[0]


def _struct(value: Any, extent: Callable[[Any], Any] = int) -> Any:
    from kernel_dsl.dtypes import int32, of_python
    from kernel_dsl.memory import ShapeDtypeStruct

    if hasattr(value, "shape"):
        return ShapeDtypeStruct(tuple(extent(n) for n in value.shape), value.dtype)
    return ShapeDtypeStruct((), of_python(value) or int32)


def _keep_all(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    torch: Any = _torch()
    outputs: Sequence[Any] = [output] if isinstance(output, torch.Tensor) else output
    kept: list[Any] = [a for a in (*inputs, *outputs) if isinstance(a, torch.Tensor)]
    ctx.inputs_given = tuple(None if isinstance(a, torch.Tensor) else a for a in inputs)
    ctx.save_for_backward(*kept)
