"""Traces a body: makes Refs for its inputs, runs the body once, and settles layouts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from .compiled import Condition, OutputSpec
from .dataclass import dataclass
from .definition import ArrayInput, Definition, Input, ScalarInput, named_axes, of_inputs
from .diagnostics import CostNote, counted
from .dims import Again, done, reading
from .errors import BodyReturned, BodySignature, KernelValue
from .facts import any_of
from .ir import ArrayType, KernelIR, MemorySpace, RefType, Region, Value
from .layout import SCALAR
from .memory import ShapeDtypeStruct
from .ops.scope import allocate, is_spec
from .packed import seen_as
from .refs import Ref
from .sizes import Geometry, SizePlan, Sizes
from .sizes import geometry as geometry_of
from .source import Loc, argument_names, here, is_ours, misfit, of_function
from .steps import TRACED, Where, walk
from .target import DEFAULT
from .trace import Trace, new_value, tracing
from .tree import flatten, unflatten
from .variables import noting


@dataclass(frozen=True)
class Traced:
    """A traced kernel, with the outputs that a launch allocates.

    The code is right for sizes of arrays and grid that meet `conditions`; `sizes` are those of this call.
    """

    ir: KernelIR
    outputs: tuple[OutputSpec, ...]
    output_tree: Any
    conditions: tuple[Condition, ...]
    sizes: Sizes
    notes: tuple[CostNote, ...] = ()
    asked: frozenset[str] = frozenset()  # a graph's variables whose values the body or the scratch asked for


def trace_kernel(
    definition: Definition,
    inputs: Sequence[Input],
    structure: Any,
    overlaps: Sequence[tuple[int, int]] = (),
    given: Sequence[ArrayInput] | None = None,
    target: Any = None,
    geometry: Geometry | None = None,
) -> Traced:
    """Trace the body for inputs like these. `overlaps`: (array, array) of one memory; `given`: preallocated outputs;
    `geometry`: outputs and grid of this call, if values of scalars decide them. The code depends only on the sizes that
    the body reads. If the body reads a size after code was made without it, or fails because a size is unknown, it is
    traced again.
    """
    made = geometry or geometry_of(definition, unflatten(structure, [i.struct() for i in inputs]))
    plan = SizePlan(definition, inputs, structure, made, (target or DEFAULT).limits.grid)
    while True:
        token = reading(plan.specialise if definition.shapes else None)
        try:
            traced = _trace_once(definition, inputs, structure, plan, overlaps, given, target)
        except Again:
            plan.read_again()
        except Exception:
            if not plan.open:
                raise
            plan.read_all()
        else:
            if not plan.reads.late:
                plan.close()
                return traced
            plan.read_again()
        finally:
            done(token)


def _trace_once(
    definition: Definition,
    inputs: Sequence[Input],
    structure: Any,
    plan: SizePlan,
    overlaps: Sequence[tuple[int, int]],
    given: Sequence[ArrayInput] | None,
    target: Any,
) -> Traced:
    outs, out_structure = plan.outs, plan.out_structure
    grid, cluster = plan.axes(), plan.cluster
    threads = definition.num_threads or 1
    _check_parameters(definition, inputs, outs)
    body = Region()
    trace = Trace(
        body,
        threads,
        definition.thread_name,
        grid=tuple(a.size for a in grid),
        axes=named_axes(grid, cluster, definition.thread_name, threads),
        approx_math=definition.params.approx_math,
        target=target,
        promise_bounds=definition.params.bounds == "promise",
        batches=tuple(a.size for a in grid[: len(definition.batches)]),
        max_registers=definition.params.max_registers,
        at=here() if is_ours(getattr(definition.body, "__code__", None)) else None,
    )
    before = len(_top(structure))
    parameters = argument_names(definition.parameters, before + len(_top(out_structure)))
    params = _input_values(inputs, structure, parameters, overlaps, plan)
    results = _output_values(outs, out_structure, given, parameters[before:], plan)
    args = unflatten(structure, [_handle(v, i) for v, i in zip(params, inputs, strict=True)])
    kinds = [getattr(o, "packed", None) for o in outs if o is not None]
    handles: list[Any] = [seen_as(Ref(v), kind) for v, kind in zip(results, kinds, strict=True)]
    for value in (*params, *results):
        value.home = body
    with noting() as asked:
        scratch: Any = definition.scratch_types
        if callable(scratch) and not is_spec(scratch):
            scratch = of_inputs(scratch, f"scratch_types of kernel {definition.name!r}", plan.structs())
        with tracing(trace):
            run_body(definition, args, unflatten(out_structure, handles), out_structure, scratch)
    ir = KernelIR(
        definition.name,
        (*params, *results),
        len(params),
        body,
        grid,
        cluster,
        threads,
        definition.thread_name,
        definition.params.approx_math,
        tuple(overlaps),
        of_function(definition.body),
        definition.params.max_registers,
    )
    plan.derive()
    plan.finish(ir)
    walk(TRACED, Where.TRACE, ir)
    alias = {out: i for i, out in definition.aliases}
    specs = tuple(
        OutputSpec(o.shape, o.dtype, o.init, _array_number(inputs, alias.get(n)), getattr(o, "packed", None))
        for n, o in enumerate(o for o in outs if o is not None)
    )
    _check_aliases(definition, inputs, specs)
    specs = tuple(replace(spec, shape=plan.outside(n)) for n, spec in enumerate(specs, plan.inputs))
    notes = tuple(trace.notes)
    return Traced(ir, specs, out_structure, plan.conditions(), plan.sizes, notes, frozenset(asked))


MAX_PARAMETERS = 32764  # bytes (PTX ISA 8.1 and later, sm_70 and later)


def _check_parameters(
    definition: Definition, inputs: Sequence[Input], outputs: Sequence[ShapeDtypeStruct | None]
) -> None:
    """Raise `KernelValue` for more arrays and scalars than a launch can pass."""
    size = 8 * sum(o is not None for o in outputs)
    for leaf in inputs:
        strides = 0 if isinstance(leaf, ScalarInput) or leaf.contiguous else len(leaf.shape)
        size += leaf.dtype.itemsize if isinstance(leaf, ScalarInput) else 8 + 8 * strides
    if size > MAX_PARAMETERS:
        what = f"{len(inputs)} inputs and {len(outputs)} outputs take {size} bytes of parameters"
        hint = f"a kernel has at most {MAX_PARAMETERS} bytes, 8 for each array: stack arrays into one"
        raise KernelValue(loc=of_function(definition.body), what=what, hint=hint)


def _array_number(inputs: Sequence[Input], leaf: int | None) -> int | None:
    if leaf is None:
        return None
    return sum(1 for i in inputs[:leaf] if isinstance(i, ArrayInput))


def _check_aliases(definition: Definition, inputs: Sequence[Input], outputs: Sequence[OutputSpec]) -> None:
    for source, target in definition.aliases:
        good = 0 <= source < len(inputs) and 0 <= target < len(outputs)
        if not good or not isinstance(inputs[source], ArrayInput):
            there = f"{counted(len(inputs), 'input')}, {counted(len(outputs), 'output')}"
            what = f"input_output_aliases: {source}: {target} with {there}"
            raise KernelValue(what=what, hint="map the number of an array input to that of an output")
        array, output = inputs[source], outputs[target]
        if isinstance(array, ArrayInput) and (array.shape, array.dtype) != (output.shape, output.dtype):
            what = f"input {source} is {array.struct()} and output {target} is not"
            raise KernelValue(what=what, hint="an alias needs one shape and one dtype")


def _top(structure: Any) -> Sequence[Any]:
    return structure if isinstance(structure, (tuple, list)) else (structure,)


def _input_values(
    inputs: Sequence[Input], structure: Any, names: list[str], overlaps: Sequence[tuple[int, int]], plan: SizePlan
) -> list[Value]:
    """One kernel parameter for each leaf."""
    labels = _leaf_labels(structure, names, "input")
    shared = {a for pair in overlaps for a in pair}
    out: list[Value] = []
    arrays = 0
    for number, leaf in enumerate(inputs):
        label = labels[number] if number < len(labels) else f"input {number}"
        if isinstance(leaf, ScalarInput):
            value = new_value(ArrayType((), leaf.dtype, SCALAR), name=label)
            value.weak = leaf.weak  # type: ignore[attr-defined]
            value.facts = any_of(leaf.dtype)
        else:
            type = RefType(
                MemorySpace.GMEM,
                plan.shape(arrays),
                leaf.dtype,
                leaf.contiguous,
                leaf.alignment,
                written=arrays in shared,
                name=label,
            )
            arrays += 1
            value = new_value(type, name=label)
        out.append(value)
    return out


def _leaf_labels(structure: Any, names: list[str], word: str) -> list[str]:
    """A name for every leaf: the parameter's, with a number if the parameter holds several leaves.

    Parameters without a name are called by a `word` and their number.
    """
    labels: list[str] = []
    for i, part in enumerate(_top(structure)):
        base = names[i] if i < len(names) else f"{word} {i}"
        leaves, _ = flatten(part)
        labels += [base] if len(leaves) == 1 else [f"{base}[{k}]" for k in range(len(leaves))]
    return labels


def _output_values(
    outs: Sequence[ShapeDtypeStruct | None],
    structure: Any,
    given: Sequence[ArrayInput] | None,
    names: list[str],
    plan: SizePlan,
) -> list[Value]:
    labels = _leaf_labels(structure, names, "output") if structure is not None else []
    out: list[Value] = []
    for number, struct in enumerate(o for o in outs if o is not None):
        label = labels[number] if number < len(labels) else f"output {number}"
        mine = given[number] if given is not None else ArrayInput(struct.shape, struct.dtype)
        shape = plan.shape(plan.inputs + number)
        type = RefType(MemorySpace.GMEM, shape, struct.dtype, mine.contiguous, mine.alignment, True, name=label)
        out.append(new_value(type, name=label))
    return out


def _handle(value: Value, leaf: Input) -> Any:
    return seen_as(Ref(value), leaf.packed) if isinstance(leaf, ArrayInput) else value


def run_body(definition: Definition, args: Sequence[Any], outputs: Any, out_structure: Any, scratch: Any) -> None:
    """Call the body with inputs, outputs and scratch. Raises `BodySignature`, `BodyReturned`."""
    from .ops.index import members

    for batch, member in zip(definition.batches, members(), strict=True):
        args, outputs = batch.inputs(args, member), batch.outputs(outputs, member)
    outs: tuple[Any, ...] = tuple(outputs) if isinstance(out_structure, (tuple, list)) else (outputs,)
    keywords: dict[str, Any] = {}
    extra: list[Any] = []
    if isinstance(scratch, Mapping):
        keywords = {str(k): _allocated(spec, str(k)) for k, spec in scratch.items()}
    else:
        items: Sequence[Any] = scratch if isinstance(scratch, (tuple, list)) else (scratch,)
        before = len(args) + len(outs)
        names = argument_names(definition.parameters, before + len(items))[before:]
        extra = [_allocated(s, names[i] if i < len(names) else f"scratch {i}") for i, s in enumerate(items)]
    why = misfit(definition.body, *args, *outs, *extra, **keywords)
    if why:
        raise BodySignature(
            loc=of_function(definition.body),
            kernel=definition.name,
            inputs=counted(len(args), "input"),
            outputs=counted(len(outs), "output"),
            scratch=len(extra) + len(keywords),
            why=why,
        )
    returned: Any = definition.body(*args, *outs, *extra, **keywords)
    if returned is not None:
        hint = "write results to the output Refs: `out[...] = value`"
        loc: Loc = of_function(definition.body)
        raise BodyReturned(loc=loc, what=f"the body of `{definition.name}`", got=type(returned).__name__, hint=hint)


def _allocated(spec: Any, name: str) -> Any:
    if spec is None:
        return None
    leaves, structure = flatten(spec, is_spec)
    many = len(leaves) > 1
    return unflatten(structure, [allocate(s, f"{name}[{i}]" if many else name) for i, s in enumerate(leaves)])
