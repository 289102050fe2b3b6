"""The errors of tracing and compiling: one small class each. Its docstring becomes its page."""

from __future__ import annotations

from .diagnostics import Error


class NotTracing(Error, RuntimeError):
    """An operation of the language was called outside a kernel body."""

    code = "not-tracing"
    title = "this operation is only available inside a kernel body"
    help = "call it from a function decorated with `@kd.kernel(...)`, when that kernel is called"


class ValueFromOtherTrace(Error, RuntimeError):
    """A traced value was used after the kernel body that made it had ended."""

    code = "escaped-value"
    title = "a value of a kernel body was used {what}"
    note = "traced values exist only while their body runs"
    help = "{hint}"


class ScratchEnded(Error, RuntimeError):
    """Scratch was used after the `run_scoped` or pipeline that made it."""

    code = "scratch-ended"
    title = "scratch was used after its scope ended"
    note = "after its scope ends, other scopes may use the same memory"
    help = "use it inside the function that `kd.run_scoped` calls, or make it `scratch_types` of the kernel"


class ValueFromOtherRegion(Error, RuntimeError):
    """A value of a branch or a loop body was used outside it."""

    code = "escaped-region"
    title = "a value of a branch or loop body was used outside it"
    note = "it exists only in that branch or iteration"
    help = "return it from `kd.cond`, carry it through the loop, or store it to a Ref"


# --- values and dtypes ---------------------------------------------------------------------------


class UnknownDType(Error, TypeError):
    """A name or an object that is no dtype of the language."""

    code = "unknown-dtype"
    title = "{what} is not a dtype that a kernel can hold"
    help = "use a name such as `kd.float32`, or a NumPy dtype; the dtypes are {names}"


class UnknownName(Error, AttributeError):
    """A name that `kernel_dsl`, a value or a Ref does not have."""

    code = "unknown-name"
    title = "{owner} has no {name}"
    help = "{hint}"


class PackedAccess(Error, TypeError):
    """An access to a single 4-bit element; two elements share a byte."""

    code = "packed-access"
    title = "{what}"
    note = "elements of 4 bits share bytes: the smallest addressable unit holds two"
    help = "{hint}"


class NoCommonDType(Error, TypeError):
    """Two dtypes have no common dtype in the promotion lattice."""

    code = "no-common-dtype"
    title = "{a} and {b} have no common dtype"
    help = "convert one of them with `.astype(...)`"


class ShapeMismatch(Error, ValueError):
    """Operands whose shapes do not broadcast."""

    code = "shape-mismatch"
    title = "shapes {shapes} do not broadcast together in `{op}`"
    note = "dimensions are compared from the right; each pair must be equal or contain a 1"
    help = "reshape or expand one operand"


class ProductShapes(ShapeMismatch):
    """Operands of a product whose shapes do not fit."""

    code = "product-shapes"
    title = "`{op}` can't multiply {shapes}"
    note = "{why}"
    help = "{hint}"


class CannotBroadcast(Error, ValueError):
    """A value that can't be broadcast to the requested shape."""

    code = "cannot-broadcast"
    title = "a value of shape {shape} can't be broadcast to {to}"
    note = "only dimensions of extent 1 stretch, and new ones come first"


class UnsupportedDType(Error, TypeError):
    """An operation that does not exist for a dtype."""

    code = "unsupported-dtype"
    title = "`{op}` is not defined for {dtype}"
    help = "{hint}"


class NotAnArray(Error, TypeError):
    """An operand that can't become a traced value."""

    code = "not-an-array"
    title = "`{op}` can't take {what}"
    help = "{hint}"


class LiteralOutOfRange(Error, OverflowError):
    """A Python number that does not fit the dtype of its context."""

    code = "literal-out-of-range"
    title = "{value} does not fit {dtype}"
    help = "{hint}"


class ValueTooLarge(Error, ValueError):
    """A value of more elements than the lanes of a warpgroup can hold."""

    code = "value-too-large"
    title = "`{op}` gives {type}: {lane} elements a lane; a lane holds at most {limit}"
    note = "a lane has 255 registers; further elements are spilled to local memory, and each takes an instruction"
    help = "work on smaller parts: blocks of the grid with `kd.program_id`, or a loop over `ref[kd.ds(i * n, n)]`"


class TracedBool(Error, TypeError):
    """A traced value decided a Python `if`, `while`, `and`, `or` or `not`."""

    code = "traced-bool"
    title = "a traced value ({type}) has no truth value while tracing"
    note = "the body runs once, without data"
    help = "{hint}"


class TracedConversion(Error, TypeError):
    """A traced value was turned into a Python number or a NumPy array."""

    code = "traced-conversion"
    title = "a traced value ({type}) can't become a Python {to}"
    note = "the body runs once, without data"
    help = "{hint}"


class TracedIteration(Error, TypeError):
    """A Python loop over a traced value."""

    code = "traced-iteration"
    title = "a traced value ({type}) can't be iterated over"
    help = "use `kd.fori_loop` or `kd.loop`, or index it with static integers"


class ValueAssigned(Error, TypeError):
    """An assignment to part of a traced value."""

    code = "value-assigned"
    title = "a traced value ({type}) can't be changed by {what}"
    note = "values are immutable: operations make new ones, and only Refs are written"
    help = "use `kd.where(mask, new, old)`, or store to a Ref: `ref[index] = value`, `kd.store(ref, index, value)`"


class BadAxis(Error, ValueError):
    """An axis that the operand does not have."""

    code = "bad-axis"
    title = "axis {axis!r} is not an axis of a value of shape {shape}"
    help = "{hint}"


class RepeatedAxis(Error, ValueError):
    """An axis named twice."""

    code = "repeated-axis"
    title = "{axis} names an axis of a value of shape {shape} twice"
    help = "name each axis once; negative ones count from the end"


class EmptyReduction(Error, ValueError):
    """A reduction without a neutral element over an empty axis."""

    code = "empty-reduction"
    title = "`{op}` over an axis of extent 0 has no value"
    note = "only reductions with a neutral element, such as `sum`, can be empty"


class BadReshape(Error, ValueError):
    """A reshape that changes the number of elements, or that a Ref can't express."""

    code = "bad-reshape"
    title = "{what} of shape {shape} can't be reshaped to {to}"
    note = "{why}"


class BadArgument(Error, ValueError):
    """An argument with a wrong value."""

    code = "bad-argument"
    title = "`{op}`: {what}"
    help = "{hint}"


class BadArgumentType(Error, TypeError):
    """An argument of a wrong type."""

    code = "bad-argument-type"
    title = "`{op}`: {what}"
    help = "{hint}"


class UnusableArgument(Error, TypeError):
    """Arguments of a wrong type that a function finds only while it runs."""

    code = "unusable-argument"
    title = "`{op}` can't work with {given}"
    note = "{why}"
    help = "check these arguments; if they are right, this is a defect of kernel_dsl"


class UnusableValue(Error, ValueError):
    """Arguments with wrong values that a function finds only while it runs."""

    code = "unusable-value"
    title = "`{op}` can't work with {given}"
    note = "{why}"
    help = "check these arguments; if they are right, this is a defect of kernel_dsl"


class BadTree(Error, ValueError):
    """A nest of tuples, lists and dicts that can't be traversed."""

    code = "bad-tree"
    title = "a nest of tuples, lists and dicts can't be traversed: {what}"
    help = "nest plain tuples, lists, and dicts with strings as keys"


# --- Refs and indexing ---------------------------------------------------------------------------


class TooManyIndices(Error, IndexError):
    """More indices than dimensions."""

    code = "too-many-indices"
    title = "{count} indices for a {what} of rank {rank} (shape {shape})"
    note = "each int, slice and `kd.ds` takes a dimension; None and `...` take none"


class IndexOutOfRange(Error, IndexError):
    """A static index outside its dimension."""

    code = "index-out-of-range"
    title = "index {index} is out of range for dimension {dim} of extent {extent}"
    note = "static indices go from {lo} to {hi}"


class SliceOutOfRange(Error, IndexError):
    """A static slice of SMEM that ends outside its Ref."""

    code = "slice-out-of-range"
    title = "the slice [{start}, {stop}) is outside dimension {dim} of extent {extent} of {what}"
    note = "only accesses to GMEM Refs are masked"


class BadIndex(Error, IndexError):
    """An object that can't be an index."""

    code = "bad-index"
    title = "{what} can't be used as an index"
    help = "{hint}"


class DynamicSlice(Error, TypeError):
    """A Python slice whose bounds are traced values."""

    code = "dynamic-slice"
    title = "the bounds of a Python slice must be static"
    note = "the size of a result is part of its type"
    help = "{hint}"


class StoreDType(Error, TypeError):
    """A store of a value whose dtype is not the Ref's."""

    code = "store-dtype"
    title = "a value of dtype {value} can't be stored to a Ref of dtype {ref}"
    help = "convert it with `.astype(kd.{ref})`"


class StoreShape(Error, ValueError):
    """A store of a value whose shape does not broadcast to the stored slice."""

    code = "store-shape"
    title = "a value of shape {value} does not broadcast to the stored slice of shape {ref}"
    help = "reshape it, keep reduced axes with `keepdims=True`, or store to a smaller slice"


class ReadOnlyRef(Error, ValueError):
    """A store to a read-only Ref."""

    code = "read-only-ref"
    title = "{name} can't be written"
    help = "{hint}"


class RefAsValue(Error, TypeError):
    """A Ref used where a value is needed."""

    code = "ref-as-value"
    title = "`{op}` needs a value, but got {ref}"
    help = "load it first: `ref[...]`"


# --- control flow --------------------------------------------------------------------------------


class PredicateNotScalar(Error, TypeError):
    """A predicate or loop bound that is not a rank-0 value of the right dtype."""

    code = "predicate-not-scalar"
    title = "`{op}` needs a rank-0 {want}, but got {got}"
    help = "{hint}"


class CarryMismatch(Error, TypeError):
    """A loop body or a branch that changes the structure, shape or dtype of its carry."""

    code = "carry-mismatch"
    title = "`{op}`: {what}"
    note = "{a} at the first place, {b} at the second"
    help = "{hint}"


class NestedTooDeep(Error, RecursionError):
    """Branches and loops that are nested too deep."""

    code = "nested-too-deep"
    title = "branches and loops are nested over {limit} deep"
    note = "each level is traced and compiled inside the level around it"
    help = "use `kd.switch` for many branches, and a loop for repeated code"


class BodyReturned(Error, TypeError):
    """A kernel body, or the body of a `when` or `loop`, returned a value."""

    code = "body-returned"
    title = "{what} must return None, but returned {got}"
    help = "{hint}"


# --- kernels, grids and scratch ------------------------------------------------------------------


class KernelArgument(Error, TypeError):
    """An argument of `kd.kernel` of a wrong type."""

    code = "kernel-argument"
    title = "`kd.kernel`: {what}"
    help = "{hint}"


class KernelValue(Error, ValueError):
    """An argument of `kd.kernel` with a wrong value."""

    code = "kernel-value"
    title = "`kd.kernel`: {what}"
    help = "{hint}"


class VariableUse(Error, TypeError):
    """A use of a `kd.Variable` where it has no value."""

    code = "variable-use"
    title = "{variable} has no value here"
    note = "a Variable stands for an integer in the arguments and the grid of calls that a `kd.Graph` records"
    help = "{hint}"


class VariableType(Error, TypeError):
    """A `kd.Variable` that a replay or arithmetic combines with something other than an integer."""

    code = "variable-type"
    title = "variable '{variable}' stands for an integer, but got {got}"
    help = "{hint}"


class VariableValue(Error, ValueError):
    """A `kd.Variable` with an impossible range, or a value outside its range."""

    code = "variable-value"
    title = "{what}"
    help = "{hint}"


class BodySignature(Error, TypeError):
    """A body whose parameters do not match the inputs, outputs and scratch."""

    code = "body-signature"
    title = "the body of `{kernel}` can't be called with {inputs}, {outputs} and {scratch} scratch"
    note = "{why}"
    help = "the body is called as `body(*inputs, *outputs, *scratch)`"


class UnknownAxis(Error, ValueError):
    """A name that is no axis of the kernel."""

    code = "unknown-axis"
    title = "{name!r} is not an axis of {of}"
    help = "its axes: {names}"


class ClosedOverArray(Error, TypeError):
    """A framework's array in a body that is not one of its arguments."""

    code = "closed-over-array"
    title = "a {what} was used inside a kernel body without being an argument"
    help = "pass it as an input; NumPy arrays may be closed over as constants"


class BadCallArgument(Error, TypeError):
    """An argument of a call with a wrong type."""

    code = "call-argument"
    title = "`{kernel}`: {what}"
    help = "{hint}"


class BadCallValue(Error, ValueError):
    """An argument of a call with a wrong value."""

    code = "call-value"
    title = "`{kernel}`: {what}"
    help = "{hint}"


class LibraryDType(BadCallArgument):
    """An array whose dtype a function of `kd.library` does not take."""

    code = "library-dtype"


class LibraryShape(BadCallValue):
    """Arrays of a call of `kd.library` whose shapes do not fit together."""

    code = "library-shape"


class SmemExceeded(Error, ValueError):
    """More SMEM than a block of the target has."""

    code = "smem-exceeded"
    title = "the kernel needs {bytes} bytes of SMEM; a block of {target} has {limit}"
    note = "{table}"
    help = "use smaller blocks, fewer stages, or `kd.run_scoped` for buffers with separate lifetimes"


class NoHostCode(Error, ValueError):
    """A kernel that can't be launched without Python."""

    code = "no-host-code"
    title = "no host code for kernel {kernel!r}: {what}"
    note = "host code launches a kernel from C, XLA and tvm-ffi, for the shapes and dtypes of its `lower` call"
    help = "{hint}"


class TargetFeature(Error, ValueError):
    """An op that the target does not have."""

    code = "target-feature"
    title = "`{op}` is not available on {target}"
    label = "needs {feature}"
    note = "targets that have it: {targets}"
    help = "compile for one of these, or use an operation that {target} has"


class UnknownTarget(Error, ValueError):
    """An unknown target."""

    code = "unknown-target"
    title = "{name!r} is not a target"
    help = "targets are {names}"


class GridLimit(Error, ValueError):
    """A grid, cluster or block beyond what the target launches."""

    code = "grid-limit"
    title = "{what}"
    help = "{hint}"
