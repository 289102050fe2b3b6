"""`kd.symmetric`: arrays that every device of a mesh has one of, in one process."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from .arguments import an_int
from .boundary import checks_itself, public
from .dtypes import DType, as_dtype
from .errors_mesh import MeshArgument, MeshMismatch
from .memory import as_dtype_of, as_shape, is_array_leaf
from .mesh import Mesh, is_group
from .target import Target

__all__ = ["Symmetric", "empty"]


class Symmetric(list[Any]):
    """One array a device, all of one shape and dtype: a list that knows its mesh. `.local(i)` is device i's array."""

    def __init__(self, arrays: Iterable[Any], mesh: Mesh | None = None) -> None:
        super().__init__(arrays)
        self.mesh = mesh
        if mesh is not None and len(self) != mesh.size:
            hint = f"give {mesh.size} arrays"
            raise MeshMismatch(kernel="symmetric", mesh=mesh, what=f"a list of {len(self)} arrays", hint=hint)

    def __repr__(self) -> str:
        return f"<symmetric {self.dtype}{list(self.shape)} on {self.mesh or f'{len(self)} devices'}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return Symmetric, (list(self), self.mesh)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of each device's array."""
        return tuple(self[0].shape)

    @property
    def dtype(self) -> DType:
        """The dtype of all arrays."""
        return as_dtype(self[0].dtype)

    def local(self, device: int) -> Any:
        """The array of device number `device`, of the framework that made it. Raises IndexError, `BadArgumentType`."""
        number = an_int(device, "local", "device")
        if not 0 <= number < len(self):
            raise IndexError(f"{self!r} has no device {number}")
        return self[number]


class OfRank(Symmetric):
    """This rank's array of one that all ranks of a group have, with one process a GPU; a list of one."""

    def __init__(self, arrays: Iterable[Any], mesh: Mesh | None = None) -> None:
        super().__init__(arrays)
        self.mesh = mesh

    def __repr__(self) -> str:
        return f"<this rank's {self.dtype}{list(self.shape)} on {self.mesh}>"


def overlap(x: Iterable[Any], y: Iterable[Any]) -> bool:
    """Whether two lists of one array a device share memory on any device."""
    from kernel_dsl.runtime.arrays import array_view

    pairs = list(zip(x, y, strict=False))
    if all(_apart(a, b) for a, b in pairs):
        return False
    return any(array_view.overlap(array_view.view(a), array_view.view(b)) for a, b in pairs)


def _apart(a: Any, b: Any) -> bool:
    """True if two gapless tensors of torch certainly do not overlap. Each call asks this, so no view is made."""
    try:
        start, other = a.data_ptr(), b.data_ptr()
        apart = start + a.nbytes <= other or other + b.nbytes <= start
        return apart and a.is_contiguous() and b.is_contiguous()
    except (AttributeError, TypeError, RuntimeError):
        return False


def gapless(*lists: Iterable[Any] | None) -> bool:
    """Whether all arrays are row-major without gaps, and begin at a multiple of 16 bytes, as TMA requires."""
    from kernel_dsl.runtime.arrays import array_view

    try:
        if all(a.is_contiguous() and a.data_ptr() % 16 == 0 for row in lists if row is not None for a in row):
            return True
    except (AttributeError, TypeError, RuntimeError):
        pass  # not a tensor of torch
    views = [array_view.view(a) for x in lists if x is not None for a in x]
    return all(v.contiguous and v.address % 16 == 0 for v in views)


def row_major(x: Iterable[Any]) -> bool:
    """Whether all arrays are row-major without gaps."""
    from kernel_dsl.runtime.arrays import array_view

    return all(a.is_contiguous() if hasattr(a, "is_contiguous") else array_view.view(a).contiguous for a in x)


@public
@checks_itself("mesh")
def empty(shape: Any, dtype: Any, mesh: Any, *, interpret: Any = None) -> Any:
    """A `Symmetric`: an uninitialised array of `shape` and `dtype` on each device of `mesh`.

    With one process a GPU, `mesh` is the process group of torch, or a mesh with one, and all ranks call this: the
    result is this rank's tensor, in torch's symmetric memory if the rank has a GPU, else on the CPU, for the
    interpreter. In one process with as many GPUs as the mesh has devices, the arrays are on the GPUs: torch tensors if
    torch is imported, else arrays that any framework takes over by DLPack. Otherwise, and with `interpret=True`, they
    are NumPy arrays for the interpreter's virtual devices. Raises `MeshArgument`, and errors of an impossible shape or
    dtype.
    """
    if not isinstance(mesh, Mesh) and not is_group(mesh):
        raise MeshArgument(what=f"mesh={mesh!r}", hint='use `kd.Mesh(("x",), (2,))`')
    from kernel_dsl.runtime.mesh.places import empty as make
    from kernel_dsl.runtime.mesh.ranks import empty_of_rank

    extents, kind = as_shape(shape, "symmetric.empty"), as_dtype_of(dtype, "symmetric.empty")
    if not isinstance(mesh, Mesh):
        mesh = Mesh(("rank",), (mesh.size(),), mesh)
    if mesh.group is not None:
        return empty_of_rank(extents, kind, mesh, interpret)
    return Symmetric(make(extents, kind, mesh.size, interpret), mesh)


def made_like(x: Any, shape: tuple[int, ...], dtype: DType, mesh: Mesh | None, kept: str = "") -> Symmetric:
    """An uninitialised array of `shape` and `dtype` on the device of each array of `x`, made by the same framework.

    `kept`: with one process a GPU, where all ranks make one together, the name of an array that later calls use again.
    """
    from kernel_dsl.runtime.arrays.array_view import interop_of, view

    made: list[Any] = []
    if isinstance(x, OfRank) and mesh is not None:
        from kernel_dsl.runtime.mesh.ranks import made_symmetric

        return OfRank([made_symmetric(x[0], shape, dtype, mesh, kept)], mesh)
    for array in x:
        if hasattr(array, "new_empty") and as_dtype(array.dtype) == dtype:  # torch's own way is the shortest
            made.append(array.new_empty(shape))
            continue
        interop, place = interop_of(array), view(array).device
        stream = interop.current_stream(place[1]) if place[0] == "cuda" else 0
        made.append(interop.empty(shape, dtype, place, stream))
    return Symmetric(made, mesh)


def is_symmetric(array: Any) -> bool:
    """Whether peers reach an array of this rank: in host memory always, on a GPU as far as torch or NVSHMEM can say."""
    from kernel_dsl.runtime.arrays.array_view import view
    from kernel_dsl.runtime.mesh import ranks

    return view(array).device[0] == "cpu" or ranks.is_symmetric(array)


def is_one_array(x: Any) -> bool:
    """Whether an argument of a call is one array, or describes one; not one array for each device."""
    return is_array_leaf(x) and not isinstance(x, Symmetric)


def devices_of(x: Any, mesh: Mesh) -> Sequence[int]:
    """Whose arrays these are: all devices', or this rank's."""
    if not isinstance(x, OfRank):
        return range(mesh.size)
    from kernel_dsl.runtime.mesh.ranks import ranks_of

    return [ranks_of(mesh, "symmetric memory").rank]


def target_of(x: Any, interpret: Any) -> Target:
    """The target of a call with these arrays: their GPU's, or the interpreter's."""
    from kernel_dsl.runtime.arrays.array_view import view
    from kernel_dsl.runtime.devices.devices import cuda_device, pick_device

    place: Any = getattr(x[0], "device", None)
    if interpret is None and getattr(place, "type", None) == "cuda" and getattr(place, "index", None) is not None:
        return cuda_device(place.index).target  # a tensor of torch on a GPU
    return pick_device(interpret, [view(x[0])]).target
