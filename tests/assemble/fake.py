"""A device that runs kernels as NumPy functions: for tests of what lies around a launch."""

from __future__ import annotations

from dataclasses import replace

from kernel_dsl.compiled import Assembled
from kernel_dsl.launch_plan import plan_of
from kernel_dsl.runtime.devices import memory
from kernel_dsl.target import DEFAULT


class FakeLoaded:
    def __init__(self, device, kernel):
        self.device, self.kernel = device, kernel
        self.plan = plan_of(kernel)

    def changed(self, step):
        """The same code, launched otherwise."""
        return FakeLoaded(self.device, replace(self.kernel, launch=step.attributes))

    def launch(self, arrays, scalars, stream=None, fresh=()):
        self.device.launches.append(self.kernel.name)
        host = [memory.host_array(view) for view in arrays]
        for index in fresh:
            host[index][...] = 113  # what uninitialised memory may hold
        self.device.bodies[self.kernel.entry](*host, *scalars)


class FakeDevice:
    """`bodies`: entry name -> function of the arrays (inputs, outputs) and scalars."""

    kind, index, target, params = "interpreter", 0, DEFAULT, None

    def __init__(self, bodies):
        self.bodies = bodies
        self.launches: list[str] = []
        self.loads = 0

    def load(self, kernel):
        self.loads += 1
        return FakeLoaded(self, kernel.kernel if isinstance(kernel, Assembled) else kernel)


def axpy_body(x, y, a):
    y[...] = x * a + 1
