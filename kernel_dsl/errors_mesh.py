"""Errors of kernels on several GPUs. A rank is a device's number in the mesh."""

from __future__ import annotations

from .diagnostics import Error


class MeshArgument(Error, TypeError):
    """A mesh argument that is no mesh, or a mesh without names and sizes."""

    code = "mesh-argument"
    title = "{what}"
    help = "{hint}"


class MeshValue(Error, ValueError):
    """An impossible mesh, or one that does not fit the kernel."""

    code = "mesh-value"
    title = "{what}"
    help = "{hint}"


class NoMesh(Error, RuntimeError):
    """An operation on other GPUs in a kernel without a mesh."""

    code = "no-mesh"
    title = "`{op}` is for kernels on a mesh of devices"
    help = 'decorate the body with `@kd.kernel(..., mesh=kd.Mesh(("x",), (2,)))`'


class NotSymmetric(Error, TypeError):
    """Memory without a counterpart on the peers."""

    code = "not-symmetric"
    title = "`{op}`: {what} is not symmetric"
    note = "a peer is reachable only if every rank has an array in the same place"
    help = "{hint}"


class NoSuchDevice(Error, IndexError):
    """A device id that the mesh does not have."""

    code = "no-such-device"
    title = "`{op}`: {what}"
    help = "{hint}"


class RanksDiffer(Error, ValueError):
    """Arrays of two ranks with different shapes or dtypes."""

    code = "ranks-differ"
    title = "{argument} of kernel {kernel!r} differs from rank to rank: {what}"
    note = "all devices run the same code, so an element must have the same place in the arrays of all ranks"
    help = "{hint}"


class MeshMismatch(Error, ValueError):
    """Arrays for another number of devices than the mesh has, or on devices that don't fit it."""

    code = "mesh-mismatch"
    title = "kernel {kernel!r}, on {mesh}: {what}"
    help = "{hint}"


class NoMulticast(Error, RuntimeError):
    """Multicast addresses where the devices or the arrays have none."""

    code = "no-multicast"
    title = "kernel {kernel!r} uses `kd.multimem_load_reduce` or `kd.multimem_store`: {what}"
    help = "{hint}"


class RanksApart(Error, RuntimeError):
    """The ranks make different calls, or one of them has ended."""

    code = "ranks-apart"
    title = "kernel {kernel!r}, on rank {rank} of {size}: {what}"
    help = "{hint}"


# How to mend a kernel of one host on several hosts.
ONE_HOST = (
    "use devices that map each other's memory; `kd.library.all_reduce`, `all_gather` and `reduce_scatter` also go between "
    "hosts"
)


class Unreachable(Error, RuntimeError):
    """A rank whose memory another rank can't reach."""

    code = "unreachable"
    title = "rank {rank} can't reach the memory of rank {peer}: {why}"
    help = "{hint}"
