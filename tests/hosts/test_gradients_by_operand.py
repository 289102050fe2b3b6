"""Each array of each function of the library is differentiated, alone and beside all others: its gradient is right, or the
call is an error. The arrays are found in the functions' signatures.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.errors import BadCallArgument, BadCallValue
from kernel_dsl.runtime.errors import ArgumentValueError

from .gradient_calls import CALLS, KEPT, Arrays, Call, is_real

# functions with this parameter take arrays of symmetric memory: tests/hosts/test_ring_gradients.py
MESH = "mesh"
# parameters of any type that are no operands
OTHERS = {
    "out", "grads", "stream", "interpret", "out_dtype", "eps", "heads", "stride", "padding", "dilation", "input_size",
    "kernel_size",
}  # fmt: skip
CASES = [(call, name) for call in CALLS for name, x in call.arrays().items() if is_real(x)]
Loss = Callable[[Arrays, Sequence[Any]], Any]
Host = Callable[[Call, Sequence[str], Arrays, Sequence[Any]], list[np.ndarray]]


def named(cases: list[tuple[Call, str]]) -> Any:
    return pytest.mark.parametrize(("call", "name"), cases, ids=[f"{call} by {name}" for call, name in cases])


def test_all_arrays_of_all_functions_are_here() -> None:
    """All functions have a call, and those with gradients have all of their arrays."""
    missing = list[str]()
    for word in kd.library.__all__:
        function = getattr(kd.library, word)
        parameters = {} if inspect.isclass(function) else inspect.signature(function).parameters
        if MESH in parameters:
            continue
        own = [call for call in CALLS if call.function == word]
        assert own or not parameters, word
        if all(name in call.constants for call, name in CASES if call.function == word):
            continue  # kernels refuse all of its arrays
        wanted = {n for n, p in parameters.items() if p.annotation in ("Any", "Sequence[Any]")} - OTHERS
        given = {n for call in own for n in call.join(call.arrays())}
        missing += [f"{word}({n}=)" for n in sorted(wanted - given)]
    assert not missing


def by_jax(call: Call, names: Sequence[str], arrays: Arrays, weights: Sequence[Any]) -> list[np.ndarray]:
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    there = {n: jax.numpy.asarray(x) for n, x in arrays.items()}

    def loss(given: Arrays) -> Any:
        made = [x.astype(np.float32) for x in call.run({**there, **given})]
        return sum((x * w).sum() for x, w in zip(made, weights or [1] * len(made), strict=True))

    found = jax.grad(loss)({n: there[n] for n in names})
    return [np.asarray(found[n]) for n in names]


def by_torch(call: Call, names: Sequence[str], arrays: Arrays, weights: Sequence[Any]) -> list[np.ndarray]:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")

    def tensor(x: np.ndarray) -> Any:
        plain = x.dtype.type.__module__ == "numpy"
        wide = torch.from_numpy(x.copy() if plain else x.astype(np.float32))
        return wide.to(getattr(torch, x.dtype.name))

    there = {n: tensor(np.asarray(x)) for n, x in arrays.items()}
    made = call.run({n: x.requires_grad_() if n in names else x for n, x in there.items()})
    loss = sum((x.float() * torch.as_tensor(w)).sum() for x, w in zip(made, weights or [1] * len(made), strict=True))
    return [x.float().numpy() for x in torch.autograd.grad(loss, [there[n] for n in names])]


HOSTS = pytest.mark.parametrize("host", [by_jax, by_torch], ids=["jax", "torch"])


@HOSTS
@named([(call, name) for call, name in CASES if name in call.constants])
def test_what_has_no_gradient_is_an_error(call: Call, name: str, host: Host) -> None:
    """Beside differentiated operands, JAX took factors for constants without a word: their gradients were zero."""
    arrays = call.arrays()
    others = [n for n, x in arrays.items() if is_real(x) and n not in call.constants]
    for names in ([name], [name, *others]) if others else ([name],):
        with pytest.raises((BadCallArgument, BadCallValue, ArgumentValueError)) as caught:
            host(call, names, arrays, [])
        word = "captured[0]" if name == "captured" else name.removesuffix("_2")
        said = f"{word} {'is differentiated' if host is by_jax else 'requires grad'}, and has no gradient here"
        alone = ("it has no derivative", "a tensor that requires grad cannot be passed", "page_table")
        packed = {"data", "values"} & set(arrays)  # told as the operand that they are parts of
        assert said in str(caught.value) or packed or (len(names) == 1 and any(x in str(caught.value) for x in alone))


def results(call: Call, arrays: Arrays) -> list[np.ndarray]:
    """A call's results on NumPy arrays."""
    plain = replace(call, options={**call.options, "interpret": True})
    return [np.asarray(x, np.float64) for x in plain.run(arrays)]


@HOSTS
@named([(call, name) for call, name in CASES if name not in call.constants])
@pytest.mark.sampled(40)
def test_a_gradient_is_right(call: Call, name: str, host: Host) -> None:
    """It is compared with differences along itself and along a random direction."""
    arrays = call.arrays()
    rng = np.random.default_rng(3)
    weights = [rng.standard_normal(x.shape).astype(np.float32) for x in results(call, arrays)]
    gradient = host(call, [name], arrays, weights)[0].astype(np.float64)
    size, x = float(np.linalg.norm(gradient)), arrays[name]
    assert size, "the gradient is zero"
    other = rng.standard_normal(gradient.shape)
    reach = (0.003 if call.far < KEPT else 0.03) * float(np.linalg.norm(x.astype(np.float64)))
    for direction in (gradient / size, other / np.linalg.norm(other)):
        ends = [(x.astype(np.float64) + sign * reach * direction).astype(x.dtype) for sign in (1, -1)]
        sums = [
            sum((y * w).sum() for y, w in zip(results(call, {**arrays, name: e}), weights, strict=True)) for e in ends
        ]
        moved = ends[0].astype(np.float64) - ends[1].astype(np.float64)
        assert abs(sums[0] - sums[1] - (gradient * moved).sum()) < call.far * size * np.linalg.norm(moved)
