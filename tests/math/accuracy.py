"""Measures worst errors over all float32 values.  Run: `python -m tests.math.accuracy [name ...]`."""

from __future__ import annotations

import sys
import time

import numpy as np

from .host import errors_single, host_function, libm

NUMPY_REFERENCES = {
    "exp": np.exp, "exp2": np.exp2, "log": np.log, "log2": np.log2, "log10": np.log10, "tanh": np.tanh,
    "rsqrt": lambda x: 1/np.sqrt(x), "logistic": lambda x: np.where(x < 0, np.exp(x), 1)/(1+np.exp(-np.abs(x))),
    "sin": np.sin, "cos": np.cos,
}

def sweep(name, step=1 << 20, stride=1, lo=0, hi=1 << 32):
    f = host_function(f"{name}.f32")
    ref = NUMPY_REFERENCES.get(name) or libm(name)
    worst = (-1.0, 0)
    with np.errstate(all="ignore"):
        for base in range(lo, hi, step * stride):
            x = np.arange(base, min(base + step * stride, hi), stride, dtype=np.uint64).astype(np.uint32).view(np.float32)
            e = errors_single(f(x), ref(x.astype(np.float64)))
            i = int(np.argmax(e))
            if e[i] > worst[0]:
                worst = (float(e[i]), float(x[i]))
    return worst

if __name__ == "__main__":
    stride = 1
    names = sys.argv[1:]
    if names and names[0].isdigit():
        stride = int(names.pop(0))
    for n in names:
        t = time.time()
        print(n, sweep(n, stride=stride), f"{time.time()-t:.1f}s", flush=True)
