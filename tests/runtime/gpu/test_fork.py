"""A child of a process that has used the GPU: the interpreter works there, and every way to the GPU is a clear error."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.gpu

SCRIPT = """
import os, signal, threading, traceback
import numpy as np
import kernel_dsl as kd

double = kd.kernel(lambda x, o: o.__setitem__(..., x[...] * 2), out_type=lambda x: x)
other = kd.kernel(lambda x, o: o.__setitem__(..., x[...] * 3), out_type=lambda x: x)
x = np.arange(256, dtype=np.float32)
arrays = [x]
try:
    import torch
    arrays.append(torch.arange(256, dtype=torch.float32, device="cuda"))
except ImportError:
    pass
calls = []
for array in arrays:
    for _ in range(4):  # the fast paths too
        double(array)
    with kd.Graph() as graph:
        double(array)
    graph()
    graph()
    bound = double.bind(array)
    bound()
    calls += [lambda a=array: double(a), bound, graph, lambda g=graph: g.launch(wait=True), lambda a=array: other(a)]
busy = threading.Event()

def launches():
    while not busy.is_set():
        graph()

thread = threading.Thread(target=launches)
thread.start()
bad = []
for number, call in enumerate(calls):
    pid = os.fork()
    if not pid:
        status = 2
        signal.alarm(60)
        try:
            call()
        except (kd.Error, RuntimeError) as error:  # torch says it too, where it is asked for its stream
            status = 0 if "fork" in str(error) else 4
        finally:
            if status:
                traceback.print_exc()
            os._exit(status)
    bad.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
pid = os.fork()
if not pid:
    signal.alarm(60)
    os._exit(0 if (other(x, interpret=True) == x * 3).all() else 5)
bad.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
busy.set()
thread.join()
assert not any(bad), bad
assert (double(x) == x * 2).all()
"""


def test_children_of_a_process_that_used_the_gpu() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    line = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
