"""From a `CompiledKernel` to a launch: devices, arrays, parameters, streams.

Importing it imports neither cuda nor a framework.
"""

if __name__ != "kernel_dsl.runtime":
    from kernel_dsl.rooms import give_way

    give_way(__name__, __file__)
else:
    from .devices.devices import pick_device
    from .plan.binding import bind, bind_packed
    from .plan.calls import call

    __all__ = ["bind", "bind_packed", "call", "pick_device"]
