"""Errors of the Hopper parts: transforms, asynchronous copies, wgmma, clusters and pipelines."""

from __future__ import annotations

from .diagnostics import Error


class BadTransform(Error, ValueError):
    """A tiling or swizzle that a buffer can't have."""

    code = "bad-transform"
    title = "{what}"
    note = "{why}"
    help = "{hint}"


class TransformConflict(Error, ValueError):
    """Two uses of one SMEM Ref that need different transforms."""

    code = "transform-conflict"
    title = "{ref} needs two different layouts in SMEM"
    note = "{why}"
    help = "give it `transforms=` that suit both uses, or use two buffers"


class CopySpaces(Error, TypeError):
    """An asynchronous copy between the wrong memory spaces."""

    code = "copy-spaces"
    title = "`{op}` copies from {src} to {dst}, but got {got}"
    help = "{hint}"


class CopyMismatch(Error, ValueError):
    """An asynchronous copy between views of different shapes or dtypes."""

    code = "copy-mismatch"
    title = "`{op}`: the source is {src} and the destination is {dst}"
    note = "both need the same shape and dtype"
    help = "{hint}"


class TmaRule(Error, ValueError):
    """A copy that the tensor memory accelerator can't do."""

    code = "tma-rule"
    title = "`{op}`: {what}"
    note = "{why}"
    help = "{hint}"


class DescriptorUse(Error, TypeError):
    """A Ref of `kd.make_tensor_descriptor` where a lane would have to find its elements."""

    code = "descriptor-use"
    title = "`{op}` can't access {ref}, a part of an array that `kd.make_tensor_descriptor` made"
    note = "its base and its extents are in a descriptor, which only asynchronous copies read"
    help = "copy blocks of it to SMEM or from there, or index the argument itself"


class BarrierBytes(Error, ValueError):
    """A copy of more bytes than one mbarrier phase counts."""

    code = "barrier-bytes"
    title = "`{op}` moves {bytes} bytes, and an mbarrier counts at most {limit} bytes a phase"
    help = "copy in several pieces, each with its own barrier"


class UnreadAccumulator(Error, ValueError):
    """A wrong use of an accumulator."""

    code = "accumulator-use"
    title = "{what}"
    note = "{why}"
    help = "{hint}"


class WgmmaShape(Error, ValueError):
    """Operands that no wgmma instruction takes."""

    code = "wgmma-shape"
    title = "`{op}`: {what}"
    note = "{why}"
    help = "{hint}"


class WgmmaType(Error, TypeError):
    """Operand dtypes that no matrix instruction takes."""

    code = "wgmma-type"
    title = "`{op}`: {what}"
    note = "{why}"
    help = "{hint}"


class RegisterBudget(Error, ValueError):
    """A request for more registers than a block of the target has."""

    code = "register-budget"
    title = "{what}"
    note = "{why}"
    help = "{hint}"


class ClusterUse(Error, ValueError):
    """A cluster operation on axes or blocks that the kernel does not have."""

    code = "cluster-use"
    title = "`{op}`: {what}"
    help = "{hint}"


class PipelineLimit(Error, ValueError):
    """A pipeline with impossible arguments."""

    code = "pipeline-limit"
    title = "`{op}`: {what}"
    note = "{why}"
    help = "{hint}"


class WarpValue(Error, TypeError):
    """An array value inside `warp_map`."""

    code = "warp-value"
    title = "{what} inside `kd.warp_map`"
    note = "arrays are spread over the four warps of a warpgroup, and here each warp runs separately"
    help = "use rank-0 values and Refs inside; compute arrays outside"


class WarpUse(Error, ValueError):
    """An operation of a whole warpgroup inside `warp_map`."""

    code = "warp-use"
    title = "`{op}` inside `kd.warp_map`"
    note = "all four warps of a warpgroup do this together, and here each warp runs separately"
    help = "do this before or after `warp_map`"


class UnawaitedCopy(Error, ValueError):
    """A copy into SMEM that may still write after the block ends."""

    code = "unawaited-copy"
    title = "nothing waits for this copy: it may still write `{name}` after the block ends"
    note = "after a block ends, another block may use its SMEM"
    help = "wait for `{barrier}` before the kernel ends, by `kd.barrier_wait`, or leave the copy out"


class TooManyArrivals(Error, ValueError):
    """More arrivals in a row than a barrier's phase takes, with no wait in between."""

    code = "too-many-arrivals"
    title = "arrival {count} at `{name}` with no wait in between: a phase takes {needed}"
    note = "copies and `kd.barrier_arrive` arrive once each; a phase that ends before its wait is lost"
    help = "raise `num_arrivals`, or use several barriers"


class TooFewArrivals(Error, ValueError):
    """A wait for a barrier whose phase can never complete."""

    code = "too-few-arrivals"
    title = "a wait for `{name}` never ends: a phase takes {needed} arrivals, and {what}"
    note = "copies and `kd.barrier_arrive` arrive once each, for the whole warpgroup"
    help = "arrive on it, or lower `num_arrivals`"
