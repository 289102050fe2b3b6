from dataclasses import dataclass, field
from typing import Any

import kernel_dsl as kd
import numpy as np

x = np.ones((4, 8), np.float32)


@dataclass
class State:
    rows: Any
    sums: dict[str, Any]
    step: int = field(default=0, metadata={"static": True})


@kd.kernel(out_type=kd.ShapeDtypeStruct((4, 8), kd.float32))
def kernel(x, out):
    def body(i, state):
        return State(state.rows, state.sums, state.step + 1)

    out[...] = kd.fori_loop(0, 4, body, State(x[...], {"a": x[...]})).rows


kernel(x)
