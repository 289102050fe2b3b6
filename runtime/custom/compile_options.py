"""`compile_options=` of `metal_kernel` and `cuda_kernel`, and their checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from ..errors import ArgumentTypeError, ArgumentValueError

# NVRTC's options by MLX's mode. Only in the fast one does Metal's compiler define __FAST_MATH__.
_MATH_MODES = {"safe": (), "relaxed": (), "fast": ("--use_fast_math",)}

_TARGET = "the target is the device's"
_OUTPUT = "what is made of the source is loaded as it is"
_HEADERS = "headers are kept compiled without being asked"
# NVRTC, 'Supported Compile Options': the options that this package sets, with reasons.
_OURS = {
    **dict.fromkeys(("gpu-architecture", "arch"), _TARGET),
    **dict.fromkeys(("dlink-time-opt", "dlto", "ltoir", "optix-ir"), _OUTPUT),
    **dict.fromkeys(("relocatable-device-code", "rdc", "device-c", "dc"), _OUTPUT),
    **dict.fromkeys(
        ("pch", "create-pch", "use-pch", "pch-dir", "pch-messages", "pch-verbose", "instantiate-templates-in-pch"), _HEADERS
    ),
}  # fmt: skip


@dataclass(frozen=True)
class CompileOptions:
    """A kernel's options: `flags` for NVRTC, and `lines` at the beginning of the user's part of the source.

    `own_headers`: the flags may change the meaning of headers, so precompiled ones can't be used.
    """

    flags: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    own_headers: bool = False


DEFAULT = CompileOptions()


def compile_options(factory: str, name: str, given: Any) -> CompileOptions:
    """The checked `compile_options=`: a dict with a "math_mode" or, for CUDA C++, a list of NVRTC's options.

    Raises ArgumentTypeError, ArgumentValueError.
    """
    if given is None:
        return DEFAULT
    if isinstance(given, Mapping):
        return _by_math_mode(factory, name, cast("Mapping[Any, Any]", given))
    if factory == "cuda_kernel" and isinstance(given, (list, tuple)):
        return CompileOptions(_flags(name, cast("Sequence[Any]", given)), own_headers=bool(given))
    kinds = "a dict" if factory == "metal_kernel" else "a list of NVRTC's options, or a dict"
    raise ArgumentTypeError(f"compile_options of {factory} {name!r} must be {kinds}, and is {given!r}")


def _by_math_mode(factory: str, name: str, given: Mapping[Any, Any]) -> CompileOptions:
    for key in given:
        if key != "math_mode":
            raise ArgumentValueError(f"compile_options of {factory} {name!r}: {key!r} is unknown; use 'math_mode'")
    mode = given.get("math_mode", "safe")
    if not isinstance(mode, str) or mode not in _MATH_MODES:
        raise ArgumentValueError(f"math_mode={mode!r} of {factory} {name!r} must be one of {sorted(_MATH_MODES)}")
    return CompileOptions(_MATH_MODES[mode], ("#define __FAST_MATH__ 1",) if mode == "fast" else ())


def _flags(name: str, given: Sequence[Any]) -> tuple[str, ...]:
    for option in given:
        where = f"compile_options of cuda_kernel {name!r} hold"
        if not isinstance(option, str):
            raise ArgumentTypeError(f"{where} {option!r}, and must hold texts such as '--use_fast_math'")
        if not option or not option.isprintable():
            raise ArgumentValueError(f"{where} {option!r}, which is not an option of NVRTC")
        why = _OURS.get(option.lstrip("-").partition("=")[0])
        if option.startswith("-") and why:
            raise ArgumentValueError(f"{where} {option!r}: {why}; leave it out")
    return tuple(given)
