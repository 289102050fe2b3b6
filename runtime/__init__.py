"""From a `CompiledKernel` to a launch: devices, arrays, parameters, streams.

Importing it imports neither cuda nor a framework.
"""

from .binding import bind
from .calls import call
from .device import pick_device

__all__ = ["bind", "call", "pick_device"]
