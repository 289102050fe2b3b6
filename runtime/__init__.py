"""From a `CompiledKernel` to a launch:

devices, arrays, parameters, streams. Imports neither cuda nor a framework by itself.
"""

from .calls import call
from .device import cuda_device, interpreter_device, pick_device

__all__ = ["call", "cuda_device", "interpreter_device", "pick_device"]
