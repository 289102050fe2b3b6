"""Children of a process that used CUDA, on the driver of `fake_cuda.c`: each way to the GPU is a clear error there."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

if not os.environ.get("KERNEL_DSL_FAKE_CUDA"):
    pytest.skip("needs the driver of test_fake_cuda.py", allow_module_level=True)

import kernel_dsl as kd
from kernel_dsl import runtime
from kernel_dsl.runtime.devices import driver
from kernel_dsl.runtime.devices.devices import cuda_device, pick_device
from kernel_dsl.runtime.errors import DeviceError

from .fake import Player, player
from .kernels import scale

__all__ = ["player"]  # a fixture
X = np.arange(32, dtype=np.float32)


def refused_in_child(act: Callable[[], Any]) -> None:
    """`act` raises in a child, and says why."""
    pid = os.fork()
    if not pid:
        status = 2
        try:
            act()
            status = 3
        except DeviceError as error:
            status = 0 if "does not live through a fork" in str(error) and "spawn" in str(error) else 4
        finally:
            if status:
                traceback.print_exc()
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_every_way_to_the_gpu_says_why_there_is_none(player: Player) -> None:
    kernel = scale()
    loaded = cuda_device(0).load(kernel)
    runtime.call(loaded, [X], [2.0])
    for act in (
        driver.api,
        cuda_device,
        lambda: pick_device(None, []),
        lambda: pick_device(False, []),
        lambda: runtime.call(loaded, [X], [2.0]),
        lambda: cuda_device(0).load(kernel),
        lambda: loaded.device.synchronize(0),
    ):
        refused_in_child(act)
    runtime.call(loaded, [X], [2.0])  # the parent goes on


def test_a_child_interprets_and_ends(player: Player) -> None:
    loaded = cuda_device(0).load(scale())
    runtime.call(loaded, [X], [2.0])
    double = kd.kernel(lambda x, o: o.__setitem__(..., x[...] * 2), out_type=lambda x: x)
    pid = os.fork()
    if not pid:
        good = False
        try:
            good = bool((double(X, interpret=True) == X * 2).all()) and not driver.available()
            del loaded  # its finalizers know that there is no driver
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0 if good else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
