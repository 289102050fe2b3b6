"""Copies and pickles: of all public names, of kernels, and of what holds them."""

from __future__ import annotations

import copy
import functools
import pickle
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.late import MODULES

X = np.arange(12, dtype=np.float32).reshape(3, 4)


@kd.kernel(out_type=lambda x: x, interpret=True)
def doubled(x: Any, out: Any) -> None:
    out[...] = x[...] * 2


@functools.lru_cache  # a decorator above ours: the module has another object by the kernel's name
@kd.kernel(out_type=lambda x: x)
def hidden(x: Any, out: Any) -> None:
    out[...] = x[...]


class Model:
    """What holds a kernel of its own method, one of the module, and a function of the library."""

    def __init__(self) -> None:
        self.own = kd.kernel(self.body, out_type=lambda x: x, interpret=True)
        self.doubled = doubled
        self.product = functools.partial(kd.library.matmul, activation=kd.relu, interpret=True)

    def body(self, x: Any, out: Any) -> None:
        out[...] = x[...] + 1


def _public() -> list[tuple[str, Any]]:
    modules = [kd, *(import_module(f"kernel_dsl.{name}") for name in MODULES)]
    found = [(f"{m.__name__}.{name}", getattr(m, name)) for m in modules for name in getattr(m, "__all__", ())]
    return [(name, thing) for name, thing in found if not isinstance(thing, ModuleType)]


def test_public_names_are_pickled_by_their_names() -> None:
    kd.library.matmul(X, X.T, interpret=True)  # a function with plans
    kd.library.attention(*np.ones((3, 1, 1, 16, 16), np.float16), interpret=True)
    objects = [(name, thing) for name, thing in _public() if callable(thing) and name != "kernel_dsl.ACC"]
    assert len(objects) > 300
    fixtures = ("kernel_dsl.testing.both_devices",)  # of pytest
    wrong = [n for n, x in objects if n not in fixtures and pickle.loads(pickle.dumps(x)) is not x]
    assert not wrong
    assert not [n for n, x in objects if n not in fixtures and (copy.copy(x) is not x or copy.deepcopy(x) is not x)]


def test_what_holds_kernels_is_copied() -> None:
    model = copy.deepcopy(Model())
    np.testing.assert_array_equal(model.own(X), X + 1)
    np.testing.assert_array_equal(model.doubled(X), X * 2)
    np.testing.assert_allclose(model.product(X, -X.T), np.maximum(X @ -X.T, 0))
    held = pickle.loads(pickle.dumps((doubled, model.product)))
    assert held[0] is doubled
    np.testing.assert_allclose(held[1](X, X.T), X @ X.T)
    mapped = kd.vmap(doubled)
    assert copy.deepcopy({"k": mapped})["k"] is mapped
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(mapped))(X), X * 2)


def test_a_kernel_without_a_name_is_not_pickled() -> None:
    def local(x: Any, out: Any) -> None:
        out[...] = x[...]

    unnamed = [
        kd.kernel(local, out_type=lambda x: x),
        kd.kernel(functools.partial(local), out_type=lambda x: x),
        kd.kernel(lambda x, out: None, out_type=lambda x: x),
        hidden.__wrapped__,
        Model().own,
        kd.vmap(kd.kernel(local, out_type=lambda x: x)),
        kd.vmap(hidden.__wrapped__),
        kd.tune([kd.library.MatmulConfig(), kd.library.MatmulConfig(stages=3)])(lambda config: doubled),
    ]
    for kernel in unnamed:
        with pytest.raises((pickle.PicklingError, AttributeError), match=r"Can't (pickle|get local)"):
            pickle.dumps(kernel)
        assert copy.deepcopy(kernel) is kernel
