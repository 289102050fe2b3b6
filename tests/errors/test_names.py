"""Errors name functions and arrays as users know them."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd

L = kd.library
FUNCTIONS = ("activation", "epilogue", "gated", "score_mod", "mask_mod", "score_mod_grad")  # a class is a function, too
INTERNAL = ("out_type", "_scored", "_general", "_kernel", "_fast")  # words of the library's own code


def _half(*shape: int) -> Any:
    return np.ones(shape, np.float16)


def _ints(*values: int) -> Any:
    return np.array(values, np.int32)


X, Q, KV, CACHE = _half(4, 8), _half(1, 4, 3, 16), _half(1, 2, 5, 16), np.ones((2, 16, 576), kd.bfloat16.numpy)
CALLS: dict[str, tuple[Any, ...]] = {
    "attention": (Q, KV, KV),
    "attention_backward": (Q, Q, KV, KV, Q, np.ones((1, 4, 3), np.float32)),
    "conv2d": (_half(1, 4, 4, 8), _half(8, 1, 1, 8)),
    "conv2d_dgrad": (_half(1, 4, 4, 8), _half(8, 1, 1, 8), (1, 4, 4, 8)),
    "conv2d_wgrad": (_half(1, 4, 4, 8), _half(1, 4, 4, 8), (1, 1)),
    "decode_attention": (Q, KV, KV, _ints(5)),
    "grouped_matmul": (X, _half(2, 8, 8), _ints(2, 2)),
    "grouped_matmul_wgrad": (X, X, _ints(2, 2)),
    "layer_norm": (X, X[0], X[0]),
    "linear_cross_entropy": (X, X, _ints(0, 1, 2, 3)),
    "matmul": (X, X.T),
    "mla_decode": (CACHE[:1, :2, None], CACHE, _ints(20), _ints(0, 1).reshape(1, 2)),
    "pack_int4": (_half(128, 8),),
    "pack_mxfp4": (_half(128, 8),),
    "rms_norm": (X, X[0]),
    "sparse_compress": (_half(64, 64) * 0,),
}


@pytest.mark.parametrize("name", CALLS)
def test_functions_of_the_library_are_named(name: str) -> None:
    function, more = getattr(L, name), {"scale": 0.1} if name == "mla_decode" else {}
    faults: list[dict[str, Any]] = [{"interpret": 3}]
    if "out" in inspect.signature(function).parameters:
        faults += [{"out": wrong} for wrong in (np.ones((2, 3), np.int8), _half(1, 1, 1, 1), [X] * 7, 3, "out")]
    for fault in faults:
        with pytest.raises(kd.Error) as caught:
            function(*CALLS[name], **more, **fault)
        said = str(caught.value)
        assert f"`{name}`" in said.splitlines()[0], said
        assert not any(word in said for word in INTERNAL), said


ODD: dict[str, Any] = {
    "4 bits": lambda: L.pack_int4(_half(128, 64), interpret=True),
    "4-bit floats": lambda: L.pack_mxfp4(_half(64, 64), interpret=True),
    "sparse": lambda: L.sparse_compress(_half(64, 64), prune=True, interpret=True),
    "struct": lambda: kd.ShapeDtypeStruct((64, 64), kd.float16),
    "kernel": lambda: kd.kernel(lambda x, o: None, out_type=lambda x: x),
    "class": lambda: np.ndarray,
    "objects": lambda: np.zeros((64, 64), object),
    "foreign order": lambda: _half(64, 64).astype(">f2"),
    "masked": lambda: np.ma.array(_half(64, 64), mask=False),
    "dict": lambda: {"a": _half(64, 64)},
}


@pytest.mark.parametrize("kind", ODD)
def test_odd_objects_in_any_place_are_named_or_taken(kind: str) -> None:
    odd = ODD[kind]()
    for name, args in CALLS.items():
        places = [p.name for p in inspect.signature(getattr(L, name)).parameters.values()]
        words = [p for p in places[len(args) :] if p not in FUNCTIONS]
        for place in [*range(len(args)), *words]:
            given = [odd if i == place else x for i, x in enumerate(args)]
            named: dict[str, Any] = {"scale": 0.1} if name == "mla_decode" else {}
            named |= {place: odd} if isinstance(place, str) else {}
            try:
                getattr(L, name)(*given, **named)
            except kd.Error as error:
                said = str(error)
                assert not any(word in said for word in ("defect", "Turned")), (name, place, said)


def test_what_is_no_array_has_no_shape() -> None:
    for name, args in CALLS.items():
        for wrong in ([[1.0]], None, 2.5):
            with pytest.raises(kd.Error) as caught:
                getattr(L, name)(wrong, *args[1:], **({"scale": 0.1} if name == "mla_decode" else {}))
            assert "of shape" not in str(caught.value).splitlines()[0], caught.value


def test_arrays_of_a_body_with_any_number_of_them() -> None:
    seen: list[str] = []

    def body(x: Any, *refs: Any) -> None:
        seen.extend(ref.root.type.name for ref in (x, *refs))
        refs[1][...] = x[...]

    scratch = [kd.SMEM((4,), kd.float32)]
    kd.kernel(body, out_type=lambda x, y: (x, y), scratch_types=scratch).lower(np.ones((3, 4)), np.ones(5))
    assert seen == ["x", "refs[0]", "refs[1]", "refs[2]", "refs[3]"]
