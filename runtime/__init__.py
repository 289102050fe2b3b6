"""From a `CompiledKernel` to a launch: devices, arrays, parameters, streams.

Importing it imports neither cuda nor a framework.
"""

if __name__ != "kernel_dsl.runtime":
    from kernel_dsl.rooms import give_way

    give_way(__name__, __file__)
else:
    from importlib import import_module
    from typing import TYPE_CHECKING, Any

    if TYPE_CHECKING:
        from .devices.devices import pick_device
        from .plan.binding import bind, bind_packed
        from .plan.calls import call

    __all__ = ["bind", "bind_packed", "call", "pick_device"]

    _PLACES = {
        "bind": "plan.binding",
        "bind_packed": "plan.binding",
        "call": "plan.calls",
        "pick_device": "devices.devices",
    }

    def __getattr__(name: str) -> Any:
        """A name at its first use.

        Modules of the folders import those of this one. If this one imported theirs, and an interrupt had ended its import
        but not that of a folder, a module of the folder could not be imported first.
        """
        if name not in _PLACES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
        return found
