"""From a `CompiledKernel` to a launch: devices, arrays, parameters, streams.

Importing it imports neither cuda nor a framework.
"""

if __name__ != "kernel_dsl.runtime":
    from kernel_dsl.rooms import give_way

    give_way(__name__, __file__)
else:
    from .binding import bind
    from .calls import call
    from .device import pick_device

    __all__ = ["bind", "call", "pick_device"]
