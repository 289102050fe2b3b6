"""Where tries happen: outside of every kernel, and in the body of one that has something of everything."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

import kernel_dsl as kd

X = np.ones((8, 16), np.float32)
INDICES = np.zeros((8, 16), np.int32)
PTX = b""".version 8.0
.target sm_80
.address_size 64
.visible .entry f(.param .u64 a, .param .u64 b) { ret; }
"""
SCRATCH = {
    "tile": kd.SMEM((8, 16), kd.float32),
    "a_tile": kd.SMEM((64, 64), kd.bfloat16),
    "b_tile": kd.SMEM((64, 64), kd.bfloat16),
    "ready": kd.Barrier(),
    "several": kd.Barrier(num_barriers=2),
    "sem": kd.SemaphoreType.REGULAR((2,)),
    "acc": kd.ACC((64, 64)),
}
_BODIES: dict[str, Any] = {
    "lambda: None": lambda: None,
    "lambda a: None": lambda a: None,
    "lambda a: a": lambda a: a,
    "lambda a, b: b": lambda a, b: b,
    "lambda *a: None": lambda *a: None,
    "lambda *a: a[0]": lambda *a: a[0] if a else None,
    "lambda v: v[0, 0] < 0": lambda v: v[0, 0] < 0,
    "lambda f: f(None)": lambda f: f(None),
}
_PLAIN: dict[str, Any] = {
    "0": 0,
    "1": 1,
    "2": 2,
    "32": 32,
    "128": 128,
    "1.5": 1.5,
    "True": True,
    "None": None,
    "(8, 16)": (8, 16),
    "(64, 64)": (64, 64),
    "(2,)": (2,),
    "()": (),
    "float32": kd.float32,
    "int32": kd.int32,
    "'i'": "i",
    "'c'": "c",
    "'wg'": "wg",
    "'{}'": "{}",
    "'increase'": "increase",
    "'mov.b32 $0, $1;'": "mov.b32 $0, $1;",
    "{'c': 1}": {"c": 1},
    "REGULAR": kd.SemaphoreType.REGULAR,
    "WGMMA": kd.Layout.WGMMA,
    "MESH": kd.Mesh(("x",), (2,)),
    "('x',)": ("x",),
    "BlockSpec": kd.BlockSpec((8, 16), lambda *i: (0, 0)),
    "SMEM spec": kd.SMEM((8, 16), kd.float32),
}
_OUTSIDE: dict[str, Any] = {
    "X": X,
    "INDICES": INDICES,
    "square": np.ones((64, 64), np.float32),
    "heads": np.ones((1, 1, 16, 16), np.float32),
    "filters": np.ones((16, 1, 1, 16), np.float32),
    "(1, 1, 16, 16)": (1, 1, 16, 16),
    "sums": np.ones((1, 1, 16), np.float32),
    "halves": np.ones((1, 1, 8, 16), np.float16),
    "lengths": np.ones(1, np.int32),
    "sparse": kd.library.SparseMatrix(
        np.ones((64, 32), np.float32), np.full((2, 128), 0x44444444, np.uint32), (64, 64)
    ),
    "[X]": [X],
    "[(8, 16)]": [(8, 16)],
    "['float32']": ["float32"],
    "[]": [],
    "['inp']": ["inp"],
    "['out']": ["out"],
    "'out[0] = inp[0];'": "out[0] = inp[0];",
    "PTX": PTX,
    "'f'": "f",
    "(1, 1, 1)": (1, 1, 1),
    "struct": kd.ShapeDtypeStruct((8, 16), kd.float32),
    "/dev/null": os.devnull,
    "[call]": [lambda: None],
    "((0, 4, 1),)": ((0, 4, 1),),
    "[config]": [kd.CompilerParams()],
}

# What to try first for a parameter of this name; the rest of what there is comes after.
HINTS: dict[str, str] = {
    "a": "x a_tile square X", "acc": "acc x", "action": "'increase'", "arrays": "[x, x]", "atomic": "'add'", "b": "x_t b_tile square X", "barrier": "ready",
    "body": "lambda *a: None", "body_fun": "lambda a, b: b|lambda a: a", "branches": "[f, f]", "cluster_axes": "'c'", "cluster_dim": "'c'", "cluster_idx": "1",
    "collective_axes": "'i' 'c'", "compiled_source": "PTX", "cond_fun": "lambda v: v[0, 0] < 0", "condition": "flag m", "dst": "tile out",
    "dimension": "0", "dtype": "float32 int32", "factor": "2", "f": "lambda *a: None|lambda: None", "false_fun": "lambda: None",
    "fill_value": "1.5", "fmt": "'{}'", "grid": "(2,) (1, 1, 1)", "grid_names": "'i' ('i', 'j')", "hi": "2", "index": "n ... {'c': 1}", "indices_or_sections": "2",
    "init_val": "x", "input_names": "['inp']", "inputs": "[X]", "k": "heads", "layout": "WGMMA", "lin_idx": "n", "lo": "1", "lower": "0",
    "memory_registers": "32", "minor_dim": "0", "minor_dim_bits": "128", "n": "n 32 1", "name": "'f' 'i'", "num_compute_wgs": "2",
    "output_dtypes": "['float32']", "output_names": "['out']", "output_shapes": "[(8, 16)]", "path": "/dev/null", "pad_width": "1",
    "predicate": "flag", "q": "heads", "rank": "1", "ref": "out tile a_tile", "regs": "((0, 4, 1),)", "scalars": "[]", "sem": "one_sem",
    "shape": "(8, 16) (64, 64)", "size": "32", "source": "'out[0] = inp[0];'", "spec": "REGULAR", "src": "x_ref tile", "start": "0",
    "swizzle": "128", "template": "'mov.b32 $0, $1;'", "thread_axis": "'wg'", "threadgroup": "(1, 1, 1)", "tile_width": "2", "tiling": "(8, 16)",
    "true_fun": "lambda: None", "upper": "2", "v": "heads", "value": "x 1", "wg_axis": "'wg'", "x": "x i_val m square heads", "y": "x i_val m",
    "z": "x", "device_id": "0 i_val", "mesh": "MESH", "names": "('x',)", "sizes": "(2,)", "index_map": "lambda *a: a[0]", "axis": "0", "axis1": "0", "axis2": "1", "compare": "x", "types": "SMEM spec", "calls": "[call]",
    "inner": "x", "other": "x", "out_type": "struct", "indices": "i_val INDICES", "keys": "x", "sorted": "row", "values": "x", "fn": "lambda a, b: b", "tree": "x [x, x]", "seed": "1 n", "p": "1 0", "dout": "heads", "out": "heads", "lse": "sums", "dlse": "sums", "lengths": "lengths", "weight": "square X", "targets": "lengths",
    "dloss": "1.5", "partials": "heads", "w": "square X filters", "group": "128", "data": "INDICES", "scales": "X", "zeros": "None",
    "space": "[config]", "compressed": "sparse", "meta": "INDICES", "input_size": "(1, 1, 16, 16)", "kernel_size": "1",
    "src_ref": "x_ref tile", "dst_ref": "out", "send_sem": "None one_sem",
    "recv_sem": "one_sem None", "experts": "[INDICES, INDICES]", "places": "[INDICES, INDICES]", "weights": "[X, X]",
    "num_experts": "2", "positions": "lengths", "cos": "X", "sin": "X",
}  # fmt: skip


class World:
    """One place for tries: what is there by name, and whether it is inside a kernel."""

    def __init__(self, objects: dict[str, Any], inside: str) -> None:
        self.objects = objects
        self.inside = inside

    def get(self, label: str) -> Any:
        return self.objects[label]


def outside(use: Callable[[World], None]) -> None:
    """Call `use` where no kernel is traced."""
    use(World({**_PLAIN, **_BODIES, **_OUTSIDE, **_made()}, ""))


def _made() -> dict[str, Any]:
    """What calls outside of kernels return, one of each kind."""

    @kd.kernel(out_type=kd.ShapeDtypeStruct((8, 16), kd.float32))
    def copies(x: Any, o: Any) -> None:
        o[...] = x[...]

    n = kd.Variable("n", 1, 8)
    return {
        "kernel": copies,
        "stages": copies.lower(X),
        "n": n,
        "n + 1": n + 1,
        "graph": _graph(copies),
        "check": kd.check,
        "bound": copies.bind(X, interpret=True),
        "cuda": kd.cuda_kernel("f", ["inp"], ["out"], "out[0] = inp[0];"),
        "metal": kd.metal_kernel("f", ["inp"], ["out"], "out[0] = inp[0];"),
        "tuned": kd.tune([kd.CompilerParams()])(lambda config: copies),
        "tuning": kd.tune([kd.CompilerParams()])(lambda config: copies).tune(X),
        "layout": kd.Layout(1, ((0, 4, 1),)),
        "rule": kd.Layout.WGMMA,
        "params": kd.CompilerParams(),
        "library.matmul": kd.library.matmul,
        "library.grouped_matmul": kd.library.grouped_matmul,
        "library.grouped_matmul_wgrad": kd.library.grouped_matmul_wgrad,
        "library.attention": kd.library.attention,
        "library.attention_backward": kd.library.attention_backward,
        "library.decode_attention": kd.library.decode_attention,
        "library.mla_decode": kd.library.mla_decode,
        "library.linear_cross_entropy": kd.library.linear_cross_entropy,
        "block": kd.BlockSpec((8, 16), lambda *i: (0, 0)),
    }


def _graph(kernel: Any) -> Any:
    with kd.Graph() as graph:
        kernel(X, interpret=True)
    return graph


_dead: dict[str, Any] = {}


def inside(which: str, use: Callable[[World], None]) -> Any:
    """Call `use` in the body of a kernel: "one" has a single warpgroup, "several" three of them and a cluster. Its stages."""
    made: list[Any] = []
    shape = (
        {"grid": (4, 2), "grid_names": ("i", "j")}
        if which == "one"
        else {
            "grid": (4,),
            "grid_names": ("i",),
            "cluster": (2,),
            "cluster_names": ("c",),
            "num_threads": 3,
            "thread_name": "wg",
        }
    )

    def outer(x: Any, o: Any) -> None:
        value = x[...]
        _dead.setdefault("dead", value)

        def body(x: Any, i: Any, n: Any, d: Any, o: Any, io: Any, **scratch: Any) -> None:
            _dead.setdefault("dead_ref", x)
            ended = kd.run_scoped(lambda t: t, kd.SMEM((8, 16), kd.float32)) if which == "one" else x
            kept: list[Any] = []
            kd.when(x[0, 0] > 0)(lambda: kept.append(x[...]))
            loaded = x[...]
            objects = {
                "x": loaded, "x_t": loaded.T, "i_val": i[...], "m": loaded > 0, "flag": loaded[0, 0] > 0, "n": n,
                "wide": n.astype(kd.int64), "fp8": loaded.astype(kd.float8_e5m2), "row": loaded[0], "x_ref": x, "i_ref": i,
                "out": o, "io": io, **scratch, "one_sem": scratch["sem"].at[0], "view": x.at[0:4], "elements": x.at[i[...], i[...]],
                "[x, x]": [loaded, loaded], "[f, f]": [lambda *a: 1, lambda *a: 2], "...": ..., "ds": kd.ds(n, 4),
                "dead": _dead["dead"], "dead_ref": _dead["dead_ref"], "other": value, "ended": ended, "branch": kept[0],
                "at": o.at, "dim_ref": d, "extent": d.shape[0], "slice(extent)": slice(d.shape[0], None), "slice(n)": slice(None, n),
            }  # fmt: skip
            use(World({**_PLAIN, **_BODIES, **objects}, which))

        M = kd.Dim("M")
        kernel = kd.kernel(body, out_type=(X, INDICES), scratch_types=SCRATCH, shapes={"d": (M, 16)}, **shape)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made.append(kernel.lower(X, INDICES, 3, kd.ShapeDtypeStruct((M, 16), kd.float32)))
        o[...] = value

    kd.kernel(outer, out_type=X).lower(X)
    return made[0]
