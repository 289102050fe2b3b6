"""Conditions on the sizes of a call: the facts that a kernel's code was made for."""

from __future__ import annotations

from math import gcd, prod
from typing import Any

from .compiled import Condition
from .extents import GRID


def plain(grid: tuple[int, ...], limits: tuple[int, int, int]) -> bool:
    """Whether the last three axes of a grid are x, y and z of the launch."""
    return len(grid) < 2 or (grid[-2] <= limits[1] and (len(grid) < 3 or grid[-3] <= limits[2]))


def holds(
    conditions: tuple[Condition, ...], shapes: tuple[tuple[int, ...], ...], grid: tuple[int, ...], limits: Any
) -> tuple[Any, ...]:
    """The answers of a call's arrays and grid to the conditions. Calls with equal answers share a kernel."""
    out: list[Any] = []
    for condition in conditions:
        kind, numbers = condition.kind, condition.numbers
        if kind == "size":
            array, axis = numbers
            out.append(grid[axis] if array == GRID else shapes[array][axis])
        elif kind == "unit":
            array, axis, width = numbers
            out.append(gcd(shapes[array][axis], width))
        elif kind == "least":
            array, axis, least = numbers
            out.append(shapes[array][axis] >= least)
        elif kind == "same":
            array, axis, other, along = numbers
            out.append(shapes[array][axis] == shapes[other][along])
        elif kind == "top":
            axis, array, along, num, den, const = numbers
            out.append(grid[axis] * den <= num * shapes[array][along] + const)
        elif kind == "points":
            most, *axes = numbers
            out.append(prod(grid[axis] for axis in axes) <= most)
        else:  # "plain": no axis of the grid is folded into another
            out.append(plain(grid, limits))
    return tuple(out)
