"""The operations of the language, one file a family; an op is defined in it and nowhere else."""

from importlib import import_module
from pkgutil import iter_modules

from .arith import *  # noqa: F403
from .atomic import *  # noqa: F403
from .barrier import *  # noqa: F403
from .bits import *  # noqa: F403
from .cast import *  # noqa: F403
from .cluster import *  # noqa: F403
from .compare import *  # noqa: F403
from .control import *  # noqa: F403
from .copy import *  # noqa: F403
from .create import *  # noqa: F403
from .debug import *  # noqa: F403
from .elementwise import broadcast_to
from .index import *  # noqa: F403
from .logic import *  # noqa: F403
from .loops import *  # noqa: F403
from .math import *  # noqa: F403
from .matrix import *  # noqa: F403
from .numeric import *  # noqa: F403
from .product import *  # noqa: F403
from .reduce import *  # noqa: F403
from .ref import *  # noqa: F403
from .scan import *  # noqa: F403
from .scope import *  # noqa: F403
from .semaphore import *  # noqa: F403
from .shape import *  # noqa: F403
from .sorting import *  # noqa: F403
from .threads import *  # noqa: F403

FAMILIES = tuple(import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__))  # noqa: F405
__all__ = ["broadcast_to"]
__all__ += [name for family in FAMILIES for name in getattr(family, "__all__", [])]
