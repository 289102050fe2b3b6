"""The problem of a convolution: its sizes, and checks of its arguments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, cast

import kernel_dsl as kd
from kernel_dsl.diagnostics import shown
from kernel_dsl.dtypes import as_dtype

from ..first_sizes import FirstSizes, dim_of, is_open
from ..refusals import Refusals, kind_and_shape

DTYPES = (kd.float16, kd.bfloat16, kd.float32)
MOST = 2**31 - 1  # the most coordinates along an axis, and pixels of all images

Pair = tuple[int, int]


@dataclass(frozen=True)
class ConvProblem:
    """A convolution of images (batch, height, width, channels) with `filters` of (rows, columns) taps, each of channels
    / groups elements.

    `stride`, `padding`, `dilation`: along height and width. The image of results is (out_height, out_width).
    """

    batch: int
    height: int
    width: int
    channels: int
    filters: int
    taps: Pair
    stride: Pair
    padding: Pair
    dilation: Pair
    groups: int
    dtype: Any

    @property
    def opened(self) -> bool:
        """Whether each call gives the number and the size of images."""
        return is_open(self.batch)

    def at_launch(self, x: Any) -> ConvProblem:
        """In a body: the problem with the launch's images."""
        return replace(self, batch=x.shape[0], height=x.shape[1], width=x.shape[2]) if self.opened else self

    def shapes(self, *axes: str, first: int = 0) -> dict[int, tuple[Any, ...]] | None:
        """`shapes=` of a kernel whose parameters are images ("x"), results ("out"), or others ("")."""
        if not self.opened:
            return None
        own: dict[str, tuple[Any, ...]] = {
            "x": (self.batch, self.height, self.width, None),
            "out": results_of(self.batch),
        }
        return {first + n: own[word] for n, word in enumerate(axes) if word}

    @property
    def out_height(self) -> int:
        return self._steps(self.height, 0)

    @property
    def out_width(self) -> int:
        return self._steps(self.width, 1)

    def _steps(self, size: int, axis: int) -> int:
        """The number of places of a filter along an axis: 0 or less if it does not fit."""
        return (size + 2 * self.padding[axis] - self._reach(axis)) // self.stride[axis] + 1

    def _reach(self, axis: int) -> int:
        """The number of places from a filter's first tap to its last, both included."""
        return self.dilation[axis] * (self.taps[axis] - 1) + 1

    def seen_by(self, places: Any, axis: int) -> Any:
        """The least size of an image along an axis with this number of places of a filter."""
        return (places - 1) * self.stride[axis] + self._reach(axis) - 2 * self.padding[axis]

    @property
    def rests(self) -> Pair:
        """(rows, columns) at an image's end that no filter reaches, because of strides."""
        height, width = (
            n - self.seen_by(self._steps(n, axis), axis) for axis, n in enumerate((self.height, self.width))
        )
        return height, width

    @property
    def pixels(self) -> int:
        """The number of pixels of all images of results."""
        return self.batch * self.out_height * self.out_width

    @property
    def depth(self) -> int:
        """The number of channels that a filter reads."""
        return self.channels // self.groups

    @property
    def share(self) -> int:
        """The number of filters of a group."""
        return self.filters // self.groups

    @property
    def x_shape(self) -> tuple[int, ...]:
        return self.batch, self.height, self.width, self.channels

    @property
    def w_shape(self) -> tuple[int, ...]:
        return self.filters, *self.taps, self.depth

    @property
    def out_shape(self) -> tuple[int, ...]:
        return self.batch, self.out_height, self.out_width, self.filters


MOST_IMAGES, MOST_SIDE = 2**20, 2**16  # of kernels for any images


def results_of(batch: Any) -> tuple[Any, ...]:
    """The extents of the results of any images."""
    return batch, dim_of("out_height", 2 * MOST_SIDE), dim_of("out_width", 2 * MOST_SIDE), None


_first = FirstSizes()


def opened(p: ConvProblem, *how: Any) -> ConvProblem | None:
    """The problem of any images if it came with other sizes before, or None. `how`: everything besides the problem that
    decides the kernel.
    """
    sizes = p.batch, p.height, p.width
    if not 0 < p.batch <= MOST_IMAGES or not min(sizes[1:]) > 0 or max(p.height, p.width) > MOST_SIDE:
        return None
    if max(p.out_height, p.out_width) > MOST_SIDE or not _first.comes_again((replace(p, **NO_IMAGES), how), sizes):
        return None
    sides = {name: dim_of(name, MOST_SIDE) for name in ("height", "width")}
    return replace(p, batch=dim_of("batch", MOST_IMAGES), **sides)


NO_IMAGES = {"batch": 0, "height": 0, "width": 0}


class ConvCheck(Refusals):
    """The checks of a function named `kernel`; each raises at the caller's line."""

    def array(self, name: str, x: Any, axes: str) -> tuple[int, int, int, int]:
        """The shape of an array of four axes."""
        shape = getattr(x, "shape", None)
        if not isinstance(shape, tuple) or not hasattr(x, "dtype") or len(cast("tuple[Any, ...]", shape)) != 4:
            raise self.argument(f"{name} is {kind_and_shape(x)}", f"{name} is {axes}")
        if as_dtype(x.dtype) not in DTYPES:
            raise self.bad_dtype(f"{name} is {as_dtype(x.dtype)}", "float16, bfloat16 or float32")
        # a SymInt of PyTorch, which has a node, is kept, so that a graph takes images of all sizes
        a, b, c, d = (n if hasattr(n, "node") else int(n) for n in x.shape)
        return a, b, c, d

    def same(self, first: tuple[str, Any], second: tuple[str, Any]) -> Any:
        """The dtype of both arrays."""
        one, other = as_dtype(first[1].dtype), as_dtype(second[1].dtype)
        if one != other:
            raise self.bad_dtype(f"{first[0]} is {one} and {second[0]} is {other}", "convert one to the other's dtype")
        return one

    def whole(self, name: str, x: Any, least: int) -> int:
        """An int of at least `least`."""
        if isinstance(x, bool) or not isinstance(x, Integral):
            raise self.argument(f"{name}={shown(x)}", f"an int, {least} or more")
        if not least <= int(x) <= MOST:
            raise self.value(f"{name}={shown(x)}", f"{least} or more, and below 2**31")
        return int(x)

    def pair(self, name: str, x: Any, least: int) -> Pair:
        """An int for both axes, or one for each."""
        if isinstance(x, bool) or not isinstance(x, (Integral, tuple, list)):
            raise self.argument(f"{name}={shown(x)}", "an int, or a pair for height and width")
        both: Sequence[Any] = cast("Sequence[Any]", x) if isinstance(x, (tuple, list)) else (x, x)
        if len(both) != 2:
            raise self.value(f"{name}={shown(x)}", "an int, or a pair for height and width")
        for n in both:
            if isinstance(n, bool) or not isinstance(n, Integral):
                raise self.argument(f"{name}={shown(x)}", "an int, or a pair of them")
            if not least <= int(n) <= MOST:
                raise self.value(f"{name}={shown(x)}", f"{least} or more, and below 2**31")
        return int(both[0]), int(both[1])

    def sizes(self, name: str, x: Any, axes: str) -> tuple[int, int, int, int]:
        """The ints of a given shape of four axes, none negative."""
        if not isinstance(x, (tuple, list)):
            raise self.argument(f"{name}={shown(x)}", axes)
        given = tuple(cast("Sequence[Any]", x))
        if any(isinstance(n, bool) or not isinstance(n, Integral) for n in given):
            raise self.argument(f"{name}={shown(x)}", axes)
        if len(given) != 4 or any(not 0 <= n <= MOST for n in given):
            raise self.value(f"{name}={shown(x)}", axes)
        a, b, c, d = (int(n) for n in given)
        return a, b, c, d

    def problem(
        self,
        x: tuple[int, int, int, int],
        w: tuple[int, int, int, int],
        dtype: Any,
        stride: Any,
        padding: Any,
        dilation: Any,
        groups: Any,
    ) -> ConvProblem:
        """The problem of images and filters of these shapes."""
        steps = self.pair("stride", stride, 1), self.pair("padding", padding, 0), self.pair("dilation", dilation, 1)
        count = self.whole("groups", groups, 1)
        channels, filters = x[3], w[0]
        if channels % count or filters % count:
            raise self.value(f"groups={count} of {channels} channels and {filters} filters", "a divisor of both")
        if not channels or not filters or not w[1] or not w[2]:
            raise self.value(f"x is {x} and w is {w}", "they have channels, and w has filters and taps")
        if w[3] * count != channels:
            what = f"x is {x} and w is {w}" + (f" in {count} groups" if count > 1 else "")
            raise self.bad_shape(what, "w is (filters, rows, columns, channels of x / groups)")
        p = ConvProblem(*x, filters, (w[1], w[2]), *steps, count, dtype)
        reach = [d * (n - 1) + 1 for d, n in zip(p.dilation, p.taps, strict=True)]
        if p.out_height < 1 or p.out_width < 1:
            what = f"filters reach over {tuple(reach)} of images of {(p.height, p.width)}, with padding={p.padding}"
            raise self.value(what, "an image with its padding must be at least as large as a filter")
        ends = [n + 2 * q + r for n, q, r in zip((p.height, p.width), p.padding, reach, strict=True)]
        if any(n > MOST for n in (*ends, p.pixels, p.batch * p.height * p.width)):
            raise self.value(f"x is {x} with padding={p.padding}", "fewer than 2**31 pixels, and places along an axis")
        return p

    def gradient(self, p: ConvProblem, dout: tuple[int, ...]) -> None:
        """Check the shape of the gradient of a result."""
        if dout != p.out_shape:
            raise self.bad_shape(f"dout is {dout}", f"the result of the convolution is {p.out_shape}")
