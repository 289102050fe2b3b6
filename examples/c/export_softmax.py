"""Write softmax.o and softmax.h, a kernel that C calls: `python export_softmax.py FOLDER`. It needs ptxas and no GPU."""

from __future__ import annotations

import sys
from typing import Any

import kernel_dsl as kd

ROWS, COLUMNS = 64, 1000


@kd.kernel(out_type=lambda x: kd.ShapeDtypeStruct(x.shape, x.dtype), grid=(ROWS,), grid_names=("row",))
def softmax(x_ref: Any, o_ref: Any) -> None:
    row = kd.axis_index("row")
    x = x_ref[row]
    e = kd.exp(x - kd.max(x))
    o_ref[row] = e / kd.sum(e)


if __name__ == "__main__":
    stages = softmax.lower(kd.ShapeDtypeStruct((ROWS, COLUMNS), kd.float32))
    for path in stages.export("softmax", folder=sys.argv[1] if len(sys.argv) > 1 else ".", c=True):
        print(path)
