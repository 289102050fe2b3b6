"""The table of TMA rules (`kernel_dsl/tma.py`) at its edges: what still works, and what no longer does.

`python -m tests.gpu.tma_rules RULE SIDE NUMBER` runs one copy on a GPU and prints whether its values are right: in a
process of its own, as an instruction that breaks a rule ends the context.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kernel_dsl import dtypes, tma
from kernel_dsl.compiled import OobFill, Swizzle

BASE = 1 << 20  # stands for an address
GOOD = tma.Tiled(BASE, dtypes.float32, (64, 16), (256,), (32, 8), (1, 1))


def _rank(n: int) -> tma.Tiled:
    strides = tuple(256 * 2**i for i in range(max(n - 1, 0)))
    return replace(
        GOOD, extents=(64, 2, 2, 2, 2, 2)[:n], strides=strides, box=(32, 1, 1, 1, 1, 1)[:n], element_strides=(1,) * n
    )


# rule: (maps that keep it just so, maps that just break it)
MAPS: dict[str, tuple[list[tma.Tiled], list[tma.Tiled]]] = {
    "rank": ([_rank(1), _rank(5)], [_rank(0), _rank(6)]),
    "interleave": ([GOOD], [replace(GOOD, interleave=1)]),
    "address": ([replace(GOOD, address=BASE + 16)], [replace(GOOD, address=BASE + 8), replace(GOOD, address=BASE + 4)]),
    "extents": (
        [replace(GOOD, extents=(64, 1)), replace(GOOD, extents=(64, 2**32))],
        [replace(GOOD, extents=(64, 0)), replace(GOOD, extents=(64, 2**32 + 1))],
    ),
    "strides": (
        [replace(GOOD, strides=(16,), extents=(4, 16), box=(4, 8)), replace(GOOD, strides=(2**40 - 16,))],
        [replace(GOOD, strides=(264,)), replace(GOOD, strides=(2**40,))],
    ),
    "box": (
        [replace(GOOD, box=(256, 1)), replace(GOOD, box=(4, 256))],
        [replace(GOOD, box=(32, 0)), replace(GOOD, box=(4, 257)), replace(GOOD, box=(260, 1))],
    ),
    "row": ([replace(GOOD, box=(4, 8))], [replace(GOOD, box=(3, 8)), replace(GOOD, box=(5, 8))]),
    "element strides": (
        [replace(GOOD, element_strides=(1, 8))],
        [replace(GOOD, element_strides=(1, 9)), replace(GOOD, element_strides=(1, 0))],
    ),
    "swizzle": (
        [replace(GOOD, swizzle=Swizzle(s), box=(s // 4, 8)) for s in (32, 64, 128)],
        [replace(GOOD, swizzle=Swizzle(s), box=(s // 4 + 4, 8)) for s in (32, 64, 128)],
    ),
    "fill": (
        [replace(GOOD, oob_fill=OobFill.NAN)],
        [replace(GOOD, oob_fill=OobFill.NAN, dtype=dtypes.int32)],
    ),
}


@dataclass(frozen=True)
class Copy:
    """One box of (8, 32) of an array of (16, 128): coordinates innermost first, bytes from the start of the SMEM tile."""

    dtype: str
    coordinates: tuple[int, int]
    smem: int = 0
    store: bool = False

    @property
    def box(self) -> tma.BoxCopy:
        return tma.BoxCopy(self.item, self.coordinates, self.smem, self.store)

    @property
    def item(self) -> int:
        return np.dtype(self.dtype).itemsize


COPIES: dict[str, tuple[list[Copy], list[Copy]]] = {
    "innermost start": (
        [
            Copy("float32", (4, 0)), Copy("float32", (-4, 0)), Copy("float16", (8, 3)), Copy("uint8", (16, -3)),
            Copy("float32", (120, 12)), Copy("float32", (4, 0), store=True), Copy("uint8", (112, 10), store=True),
        ],
        [
            Copy("float32", (1, 0)), Copy("float32", (3, 0)), Copy("float32", (-1, 0)), Copy("float16", (4, 0)),
            Copy("float16", (1, 2)), Copy("uint8", (5, 0)), Copy("uint8", (8, 0)), Copy("float32", (2, 0), store=True),
            Copy("float16", (7, 0), store=True),
        ],
    ),
    "negative store": (
        [Copy("float32", (0, 0), store=True), Copy("float32", (0, 12), store=True), Copy("float32", (-4, -3))],
        [Copy("float32", (-4, 0), store=True), Copy("float32", (0, -1), store=True)],
    ),
    "coordinates": (
        [Copy("float32", (2**31 - 64, 0)), Copy("float32", (0, 2**31 - 1)), Copy("float32", (-(2**31), 0)),
         Copy("float32", (2**31 - 64, 0), store=True)],
        [],  # a register holds no other
    ),
    "shared memory": (
        [Copy("float32", (0, 0), 128), Copy("float32", (0, 0), 1152, store=True)],
        [Copy("float32", (0, 0), 16), Copy("float32", (0, 0), 64), Copy("float32", (0, 0), 16, store=True)],
    ),
}  # fmt: skip

TILE = 4096  # bytes of SMEM in the kernels below

LOAD = """{head}
 mov.u32 %r2, t; add.u32 %r2, %r2, {smem}; mov.u32 %r3, bar; mov.s32 %r10, {x}; mov.s32 %r11, {y};
 setp.ne.u32 %p1, %r1, 0; @%p1 bra READY;
 mbarrier.init.shared::cta.b64 [%r3], 1; fence.mbarrier_init.release.cluster;
 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], {size};
 cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r2], [%d1, {{%r10, %r11}}], [%r3];
READY: bar.sync 0;
W: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r3], 0; @!%p2 bra W;
 shl.b32 %r4, %r1, 2;
L: setp.ge.u32 %p3, %r4, {size}; @%p3 bra END;
 add.u32 %r5, %r2, %r4; ld.shared.u32 %r6, [%r5]; cvt.u64.u32 %d3, %r4; add.s64 %d4, %d2, %d3; st.global.u32 [%d4], %r6;
 add.u32 %r4, %r4, 512; bra L;
END: ret;
}}
"""

STORE = """{head}
 mov.u32 %r2, t; add.u32 %r2, %r2, {smem}; mov.s32 %r10, {x}; mov.s32 %r11, {y};
 shl.b32 %r4, %r1, 2;
L: setp.ge.u32 %p3, %r4, {size}; @%p3 bra READY;
 add.u32 %r5, %r2, %r4; cvt.u64.u32 %d3, %r4; add.s64 %d4, %d2, %d3; ld.global.u32 %r6, [%d4]; st.shared.u32 [%r5], %r6;
 add.u32 %r4, %r4, 512; bra L;
READY: fence.proxy.async.shared::cta; bar.sync 0;
 setp.ne.u32 %p1, %r1, 0; @%p1 bra END;
 cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%d1, {{%r10, %r11}}], [%r2];
 cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
END: ret;
}}
"""

HEAD = f""".version 8.6
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 map, .param .u64 data) {{
 .reg .pred %p<4>; .reg .b32 %r<20>; .reg .b64 %d<6>;
 .shared .align 1024 .b8 t[{TILE}]; .shared .align 8 .b64 bar;
 ld.param.u64 %d1, [map]; ld.param.u64 %d2, [data]; mov.u32 %r1, %tid.x;"""


def ptx(copy: Copy) -> str:
    """A kernel `k(map, data)` of 128 lanes that makes the copy, into `data` or from it."""
    x, y = copy.coordinates
    return (STORE if copy.store else LOAD).format(head=HEAD, smem=copy.smem, x=x, y=y, size=8 * 32 * copy.item)


def arrays(copy: Copy) -> tuple[np.ndarray, np.ndarray]:
    """The array that the map is of, and the box's elements: what is stored, or where a load puts them."""
    whole = (
        np.zeros((16, 128), copy.dtype)
        if copy.store
        else (np.arange(16 * 128) % 251).reshape(16, 128).astype(copy.dtype)
    )
    part = (
        (np.arange(8 * 32) % 97 + 1).reshape(8, 32).astype(copy.dtype) if copy.store else np.zeros((8, 32), copy.dtype)
    )
    return whole, part


def wanted(copy: Copy) -> tuple[np.ndarray, np.ndarray]:
    """Both when the copy is done: zeros for what lies outside, and nothing stored there."""
    whole, part = arrays(copy)
    x, y = copy.coordinates
    for row in range(8):
        for column in range(32):
            at = row + y, column + x
            if 0 <= at[0] < 16 and 0 <= at[1] < 128:
                if copy.store:
                    whole[at] = part[row, column]
                else:
                    part[row, column] = whole[at]
    return whole, part


def tiled(copy: Copy, address: int) -> tma.Tiled:
    return tma.Tiled(address, dtypes.as_dtype(copy.dtype), (128, 16), (128 * copy.item,), (32, 8), (1, 1))


def encode(t: tma.Tiled) -> tuple[str, bytes]:
    """(the verdict of the driver or its binding, the 128 bytes) of a map, with nothing of ours between."""
    import ctypes

    from cuda.bindings import driver as cu

    def name(kind: str, word: str) -> Any:
        return getattr(getattr(cu, f"CUtensorMap{kind}"), f"CU_TENSOR_MAP_{word}")

    types = {"float32": "FLOAT32", "float16": "FLOAT16", "uint8": "UINT8", "int32": "INT32"}
    swizzles = {Swizzle.NONE: "NONE", Swizzle.B32: "32B", Swizzle.B64: "64B", Swizzle.B128: "128B"}
    fill = "NONE" if t.oob_fill is OobFill.ZEROS else "NAN_REQUEST_ZERO_FMA"
    arguments = (
        name("DataType", f"DATA_TYPE_{types[t.dtype.name]}"), len(t.extents), t.address,
        [cu.cuuint64_t(n) for n in t.extents] or [cu.cuuint64_t(1)],
        [cu.cuuint64_t(n) for n in t.strides] or [cu.cuuint64_t(0)],
        [cu.cuuint32_t(n) for n in t.box] or [cu.cuuint32_t(1)],
        [cu.cuuint32_t(n) for n in t.element_strides] or [cu.cuuint32_t(1)],
        name("Interleave", f"INTERLEAVE_{('NONE', '16B', '32B')[t.interleave]}"),
        name("Swizzle", f"SWIZZLE_{swizzles[t.swizzle]}"),
        name("L2promotion", "L2_PROMOTION_NONE"),
        name("FloatOOBfill", f"FLOAT_OOB_FILL_{fill}"),
    )  # fmt: skip
    try:
        status, made = cu.cuTensorMapEncodeTiled(*arguments)
    except ValueError as error:  # lists longer than the driver's, which its binding refuses
        return str(error), b""
    good = int(status) == 0
    return status.name, ctypes.string_at(int(made.getPtr()), 128) if good else b""


def on_gpu(copy: Copy) -> bool:
    """Whether a GPU gives what is wanted. Raises where it stops."""
    from .launcher import Gpu, _check

    with Gpu() as gpu:
        cu = gpu.driver
        whole, part = arrays(copy)
        pointers = [gpu._upload(a) for a in (whole, part)]
        status, data = encode(tiled(copy, int(pointers[0])))
        if not data:
            raise RuntimeError(status)
        pointers.append(gpu._upload(np.frombuffer(data, np.uint8)))
        function = _check(cu.cuModuleGetFunction(gpu.load(ptx(copy).encode()), b"k"))
        words = np.array([int(pointers[2]), int(pointers[1])], np.uint64)
        addresses = np.array([words[i : i + 1].ctypes.data for i in range(2)], np.uint64)
        _check(cu.cuLaunchKernel(function, 1, 1, 1, 128, 1, 1, 0, 0, addresses.ctypes.data, 0))
        _check(cu.cuCtxSynchronize())
        for pointer, array in zip(pointers[:2], (whole, part), strict=True):
            _check(cu.cuMemcpyDtoH(array.ctypes.data, pointer, array.nbytes))
        return all(np.array_equal(a, b) for a, b in zip((whole, part), wanted(copy), strict=True))


def main() -> int:
    rule, side, number = sys.argv[1:]
    right = on_gpu(COPIES[rule][side == "outside"][int(number)])
    print("right" if right else "other values")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
