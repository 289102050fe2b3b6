"""What collectives ask of torch's tensors before a call: each answer by the tensors' own methods, without a view of the runtime's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernel_dsl import symmetric
from kernel_dsl.dtypes import float32
from kernel_dsl.mesh import Mesh
from kernel_dsl.runtime.arrays import array_view


class Tensor:
    """The part of a tensor of torch that is asked."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self.dtype, self.shape, self.nbytes = array.dtype, array.shape, array.nbytes

    @property
    def __array_interface__(self) -> Any:
        return self.array.__array_interface__

    def data_ptr(self) -> int:
        return self.array.ctypes.data

    def is_contiguous(self) -> bool:
        return self.array.flags.c_contiguous

    def new_empty(self, shape: tuple[int, ...]) -> Tensor:
        return Tensor(np.empty(shape, self.dtype))


@pytest.fixture
def viewed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was viewed; the views are of the arrays behind the tensors."""
    asked: list[Any] = []
    plain = array_view.view

    def view(tensor: Any, *more: Any) -> Any:
        asked.append(tensor)
        return plain(tensor.array, *more)

    monkeypatch.setattr(array_view, "view", view)
    return asked


def test_tensors_apart_are_not_viewed(viewed: list[Any]) -> None:
    whole = np.zeros((8, 16), np.float32)
    halves = [Tensor(whole[:4]), Tensor(whole[4:])]
    assert not symmetric.overlap(halves[:1], halves[1:]) and not viewed


def test_what_shares_memory_or_has_gaps_is_looked_at(viewed: list[Any]) -> None:
    whole = np.zeros((8, 16), np.float32)
    assert symmetric.overlap([Tensor(whole)], [Tensor(whole)])
    assert symmetric.overlap([Tensor(whole[:5])], [Tensor(whole[4:])])
    columns = [Tensor(whole[:, :8]), Tensor(whole[:, 8:])]
    assert not symmetric.overlap(columns[:1], columns[1:]), "between each other, and yet apart"
    # its bytes are few, and it reaches into the other
    assert symmetric.overlap([Tensor(whole[::7])], [Tensor(whole[7:])])
    assert len(viewed) == 8


def test_gapless_by_the_tensors_own_words(viewed: list[Any]) -> None:
    whole = np.zeros((9, 16), np.float32)
    first = (-whole.ctypes.data // 4) % 4
    flat = whole.reshape(-1)
    at = lambda n: Tensor(flat[first + n : first + n + 64].reshape(8, 8))  # noqa: E731
    assert symmetric.gapless([at(0)], None, [at(4)]) and not viewed
    assert not symmetric.gapless([at(0)], [at(1)])
    assert not symmetric.gapless([Tensor(whole[:, :8])])


def test_made_like_asks_the_tensor(viewed: list[Any]) -> None:
    made = symmetric.made_like([Tensor(np.zeros(2, np.float32))] * 2, (3, 4), float32, Mesh(("x",), (2,)))
    assert made.shape == (3, 4) and type(made[1]) is Tensor and made[0] is not made[1] and not viewed
