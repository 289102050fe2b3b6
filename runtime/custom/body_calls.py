"""Calls of `cuda_kernel` and `metal_kernel`: templates, array geometry as parameters, and the compiled form for each call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from kernel_dsl.diagnostics import of_kind
from kernel_dsl.dtypes import DType, as_dtype

from ..arrays.array_view import ArrayView
from ..devices.device import Device, LoadedImage
from ..devices.images import device_key, load_image
from ..errors import ArgumentTypeError, ArgumentValueError
from .body import CustomBody, check_name, mentions
from .calls import (
    CustomCall,
    Input,
    Threads,
    as_input,
    check_shared_memory,
    choose_device,
    count_threads,
    output_specs,
)
from .effects import may_have_effects

MAX_NDIM = 10


@dataclass(frozen=True)
class TemplateValue:
    """A compile-time argument: a dtype, an int (32 bits) or a bool."""

    name: str
    value: DType | int | bool

    @property
    def label(self) -> str:
        """The text in the entry's name."""
        if isinstance(self.value, bool):
            return "t" if self.value else "f"
        return str(self.value).replace("-", "m")


@dataclass(frozen=True)
class BodySpecialisation:
    """The values beside the body that the generated text depends on."""

    input_names: tuple[str, ...]
    inputs: tuple[Input, ...]
    output_names: tuple[str, ...]
    output_dtypes: tuple[DType, ...]
    template: tuple[TemplateValue, ...]

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for calls that need the same text."""
        inputs = tuple((i.dtype.name, not i.shape) for i in self.inputs)
        outputs = tuple(d.name for d in self.output_dtypes)
        template = tuple((v.name, type(v.value), str(v.value)) for v in self.template)
        return self.input_names, inputs, self.output_names, outputs, template

    @property
    def dtypes(self) -> list[DType]:
        """Every dtype that the kernel handles."""
        named = [v.value for v in self.template if isinstance(v.value, DType)]
        return [*(i.dtype for i in self.inputs), *self.output_dtypes, *named]


@dataclass(frozen=True)
class CallArguments:
    """The arguments of one call, unchanged."""

    inputs: Any
    output_shapes: Any
    output_dtypes: Any
    grid: Any
    threadgroup: Any
    template: Any
    init_value: Any
    contiguous: bool
    stream: Any
    interpret: Any


def prepare(body: CustomBody, call: CallArguments, shared_memory: int) -> tuple[BodySpecialisation, CustomCall, Device]:
    """Check a call's arguments. Raises before anything is compiled or launched."""
    name, inputs, outputs = body.name, body.input_names or (), body.output_names or ()
    _count(name, "inputs", call.inputs, len(inputs))
    _count(name, "output_shapes", call.output_shapes, len(outputs))
    _count(name, "output_dtypes", call.output_dtypes, len(outputs))
    values = tuple(as_input(v, f"input {n!r}", name, n) for n, v in zip(inputs, call.inputs, strict=True))
    for each, value in zip(inputs, values, strict=True):
        if len(value.shape) > MAX_NDIM:
            raise ArgumentValueError(
                f"input {each!r} of kernel {name!r} has {len(value.shape)} dimensions, and at "
                f"most {MAX_NDIM} are "
                "passed to a kernel; reshape it"
            )
    specs = output_specs(call.output_shapes, call.output_dtypes, call.init_value, name)
    template = template_values(call.template, name, (*inputs, *outputs))
    threads = count_threads(call.grid, call.threadgroup, name)
    special = BodySpecialisation(inputs, values, outputs, tuple(s.dtype for s in specs), template)
    ready = CustomCall(
        name,
        values,
        specs,
        threads,
        check_shared_memory(shared_memory, name),
        call.contiguous,
        call.stream,
        outputs,
        read_only=True,
        effects=may_have_effects(body.header, body.source),
    )
    return special, ready, choose_device(call.interpret, values)


def _count(name: str, what: str, value: Any, expected: int) -> None:
    if not isinstance(value, (list, tuple)):
        raise ArgumentTypeError(f"{what}= of kernel {name!r} must be a list, and is {of_kind(value)}")
    got = len(cast(Sequence[Any], value))
    if got != expected:
        raise ArgumentValueError(f"{what}= of kernel {name!r} holds {got}, and {expected} are expected")


def template_values(template: Any, name: str, taken: Sequence[str]) -> tuple[TemplateValue, ...]:
    """The (name, value) pairs of `template`, checked."""
    if template is None:
        return ()
    pairs: Any = list(cast(Mapping[Any, Any], template).items()) if isinstance(template, Mapping) else template
    if isinstance(pairs, str) or not isinstance(pairs, Sequence):
        raise ArgumentTypeError(f"template= of kernel {name!r} must be a list of (name, value) pairs")
    values: list[TemplateValue] = []
    used = list(taken)
    for pair in cast(Sequence[Any], pairs):
        if not isinstance(pair, (tuple, list)) or len(cast(Sequence[Any], pair)) != 2:
            raise ArgumentTypeError(f"template= of kernel {name!r} holds {pair!r}, and must hold (name, value) pairs")
        key, value = cast(tuple[Any, Any], pair)
        check_name(key, f"template= of kernel {name!r}")
        if key in used:
            raise ArgumentValueError(f"template= of kernel {name!r}: the name {key!r} is given twice")
        used.append(key)
        values.append(TemplateValue(key, _template_value(key, value, name)))
    return tuple(values)


def _template_value(key: str, value: Any, name: str) -> DType | int | bool:
    refused = ArgumentValueError(
        f"template argument {key!r} of kernel {name!r} is {value!r}, and must be a dtype, an int of 32 bits or a bool"
    )
    if isinstance(value, (bool, np.bool_)):
        return bool(cast(Any, value))
    if isinstance(value, (int, np.integer)):
        number = int(cast(Any, value))
        if not -(2**31) <= number < 2**31:
            raise refused
        return number
    if value is None or isinstance(value, (float, complex, np.generic)):
        raise refused
    try:
        return as_dtype(value)
    except TypeError:
        raise refused from None


def axis_parameters(body: CustomBody, inputs: Sequence[ArrayView]) -> list[ArrayView | bytes]:
    """Each input, followed by its shape, strides and number of dimensions if the source mentions them."""
    params: list[ArrayView | bytes] = []
    for name, seen in zip(body.input_names or (), inputs, strict=True):
        params.append(seen)
        if mentions(body.source, f"{name}_shape"):
            params.append(_per_axis(seen.shape, np.int32, name, body.name))
        if mentions(body.source, f"{name}_strides"):
            params.append(_per_axis(seen.strides, np.int64, name, body.name))
        if mentions(body.source, f"{name}_ndim"):
            params.append(np.int32(len(seen.shape)).tobytes())
    return params


def bounds_bytes(seen: ArrayView) -> bytes:
    """The least and the greatest offset of an element from the first, in elements; (0, -1) without elements."""
    if not seen.size:
        return np.array((0, -1), np.int64).tobytes()
    reach = [(n - 1) * s for n, s in zip(seen.shape, seen.strides, strict=True)]
    return np.array((sum(min(r, 0) for r in reach), sum(max(r, 0) for r in reach)), np.int64).tobytes()


def _per_axis(values: Sequence[int], dtype: Any, name: str, kernel: str) -> bytes:
    array = np.zeros(MAX_NDIM, dtype)
    try:
        array[: len(values)] = values
    except OverflowError:
        raise ArgumentValueError(
            f"input {name!r} of kernel {kernel!r} has an extent over 2**31 - 1, which {name}_shape cannot hold"
        ) from None
    return array.tobytes()


def grid_bytes(threads: Threads) -> bytes:
    """The grid, in threads, as three 64-bit integers."""
    return np.array(threads.grid, np.uint64).tobytes()


class Images:
    """The compiled forms of one kernel object, by device and by the values that the text depends on.

    `absent`: patterns of names that the language has and we lack, with an error text for each.
    """

    def __init__(
        self, headers: Mapping[str, str], options: Sequence[str], absent: Mapping[str, str] | None = None
    ) -> None:
        self._headers = headers
        self._options = tuple(options)
        self._absent = absent or {}
        self._images: dict[object, LoadedImage] = {}

    def get(
        self,
        body: CustomBody,
        special: BodySpecialisation,
        device: Device,
        variant: object,
        write: Callable[[], tuple[str, str]],
        verbose: bool,
    ) -> LoadedImage:
        """The image for a call; `write` gives the entry's name and the text, which is printed if `verbose`."""
        key = (special.key, variant, device_key(device))
        found = self._images.get(key)
        if found is None or verbose:
            entry, text = write()
            if verbose:
                print(f"Generated source code for `{body.name}`:\n```\n{text}\n```")
            if found is None:
                image = body.compile(text, device, self._headers, self._options, self._absent)
                found = self._images[key] = load_image(device, image, entry)
        return found
