"""The checks of a DLTensor before a launch: one function of the host code, which reads what an array must be from a table.

Each array has a table of int64: its dtype, its rank, whether it must be row-major, its alignment less one, its extents, and the
strides of a row-major array. Checks written out for each array would be most of the code, and LLVM's time grows with it.
"""

from __future__ import annotations

from kernel_dsl.compiled import ArrayAssumption

from .host import BAD_ARGUMENT, Host
from .host_tensors import CUDA, DL_CODES, MANAGED, gapless
from .host_writer import HostFunction
from .value import V

_DTYPE, _RANK, _ROW_MAJOR, _MASK, _SHAPE = 0, 8, 16, 24, 32  # places in a table, in bytes; strides follow the shape
_NO_ELEMENTS = -1  # in place of the mask: there is no memory to check
_FUNCTION = "@kd.array"
_PARAMETERS = ("tensor", "name", "dtype", "wanted", "row", "first", "first_name", "message")


def wanted(given: ArrayAssumption) -> list[int]:
    """An array's table."""
    empty = 0 in given.shape
    dtype = DL_CODES[given.dtype.name] | given.dtype.bits << 8 | 1 << 16  # a DLDataType of one lane, as a word
    mask = _NO_ELEMENTS if empty else given.alignment - 1
    row_major = int(given.contiguous and not empty)
    return [dtype, len(given.shape), row_major, mask, *given.shape, *gapless(given.shape)]


def add_array_check(host: Host) -> None:
    """Add the function that compares a DLTensor with its table, and fills its row."""
    parameters = ", ".join(f"ptr %{name}" for name in _PARAMETERS)
    signature = f"internal i32 {_FUNCTION}({parameters})"
    host.module.function(signature, lambda f: _ArrayCheck(host, f).whole(), "noinline ")


def check_array(
    host: Host, f: HostFunction, number: int, tensor: str, name: str, row: str, first: tuple[str, str]
) -> None:
    """Call that function for an array, and return its error if it has one.

    `tensor`: the address of the DLTensor. `row`: of the row to fill. `first`: of the DLTensor that names the GPU, and its name.
    """
    given, text = host.plan.arrays[number], host.module.text
    table = host.module.words(wanted(given))
    addresses = (tensor, text(name), text(str(given.dtype)), table, row, first[0], text(first[1]), "%message")
    host.call(f, f"{_FUNCTION}({', '.join(f'ptr {address}' for address in addresses)})")


class _ArrayCheck:
    """The body of the function."""

    def __init__(self, host: Host, f: HostFunction) -> None:
        self.host: Host = host
        self.f: HostFunction = f
        self.kernel: str = host.module.text(host.plan.name)

    def refuse(self, condition: V, words: str, *values: str) -> None:
        """Return with an error if the i1 `condition` holds. `words` follow the names of the kernel and the array."""
        self.f.refuse(condition, BAD_ARGUMENT, f"%s: {words}", f"ptr {self.kernel}", *values)

    def whole(self) -> None:
        f = self.f
        self.refuse(f.given("%tensor").equal("null"), "%s is NULL", "ptr %name")
        self._device()
        self._dtype()
        rank = self._shape()
        self._memory(rank)
        f.do("ret i32 0")

    def _device(self) -> None:
        f = self.f
        kind, where = f.load("i32", "%tensor", 8), f.load("i32", "%tensor", 12)
        on_gpu = kind.equal(CUDA) | kind.equal(MANAGED)
        self.refuse(~on_gpu, "%s is not on a GPU: its device type is %d", "ptr %name", f"i32 {kind}")
        other = f.load("i32", "%first", 12)
        words = "%s is on GPU %d, and %s is on GPU %d"
        names = ("ptr %name", f"i32 {where}", "ptr %first_name", f"i32 {other}")
        self.refuse(where.differs(other), words, *names)

    def _dtype(self) -> None:
        f = self.f
        different = f.load("i32", "%tensor", 20).differs(f.load("i32", "%wanted", _DTYPE))
        code, bits, lanes = f.load("i8", "%tensor", 20), f.load("i8", "%tensor", 21), f.load("i16", "%tensor", 22)
        words = "%s has a dtype of code %d, %d bits and %d lanes, and the kernel was compiled for %s"
        wide = [f"i32 {v.zext('i32')}" for v in (code, bits, lanes)]
        self.refuse(different, words, "ptr %name", *wide, "ptr %dtype")

    def _shape(self) -> V:
        f = self.f
        has, rank = f.load("i32", "%tensor", 16), f.load("i32", "%wanted", _RANK)
        words = "%s has rank %d, and the kernel was compiled for rank %d"
        self.refuse(has.differs(rank), words, "ptr %name", f"i32 {has}", f"i32 {rank}")
        shape, count = f.pointer("%tensor", 24), rank.zext("i64")
        missing = shape.equal("null") & rank.differs(0)
        self.refuse(missing, "the shape of %s is NULL", "ptr %name")
        with f.each(count) as axis:
            extent = f.load("i64", shape, axis * 8)
            compiled = f.load("i64", "%wanted", axis * 8 + _SHAPE)
            words = "axis %lld of %s has %lld elements, and the kernel was compiled for %lld"
            values = (f"i64 {axis}", "ptr %name", f"i64 {extent}", f"i64 {compiled}")
            self.refuse(extent.differs(compiled), words, *values)
        return count

    def _memory(self, rank: V) -> None:
        f = self.f
        plain, given = f.after("%wanted", rank * 8 + _SHAPE), f.pointer("%tensor", 32)
        strides = given.equal("null").where(plain, given, "ptr")  # a DLTensor may have none where it is row-major
        data, mask = f.word("%tensor", 0), f.word("%wanted", _MASK)
        address = data + f.word("%tensor", 40)
        f.write("i64", address, "%row")
        f.write("ptr", strides, "%row", 8)
        with f.when(f.word("%wanted", _ROW_MAJOR).differs(0)), f.each(rank) as axis:
            # no index is multiplied by the stride of an axis of extent 1
            used = f.load("i64", "%wanted", axis * 8 + _SHAPE).differs(1)
            has, needs = f.load("i64", strides, axis * 8), f.load("i64", plain, axis * 8)
            words = "%s is not row-major: axis %lld has a stride of %lld elements, and needs %lld"
            values = ("ptr %name", f"i64 {axis}", f"i64 {has}", f"i64 {needs}")
            self.refuse(used & has.differs(needs), words, *values)
        f.leave_when(mask.equal(_NO_ELEMENTS), lambda: f.do("ret i32 0"))
        self.refuse(data.equal(0), "%s has no memory: its data is NULL", "ptr %name")
        words = "the address %#llx of %s is not a multiple of %lld bytes"
        values = (f"i64 {address}", "ptr %name", f"i64 {mask + 1}")
        self.refuse((address & mask).differs(0), words, *values)
