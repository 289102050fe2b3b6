"""The space of a product's routes, which `python -m kernel_dsl tune matmul` searches, and the look-up of tuned ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kernel_dsl.target import Target
from kernel_dsl.tuning_file import brief, written

from ..products.arguments import Request
from ..tuned_choices import MATMUL, RouteChoice, look_up
from .routes import Route, routes


def key_of(r: Request) -> str | None:
    """The text of a product: sizes, dtypes, steps, and the operands' layouts.

    None if a step has a caller's function.
    """
    p = r.problem
    if not p.named or p.groups is not None or not (p.M and p.N and p.K) or 0 in p.batch:
        return None
    sides = ["along k" * o.along_k or "along rows" for o in (r.left, r.right)]
    odd = ["" if o.tma and o.contiguous else f" tma={o.tma} contiguous={o.contiguous}" for o in (r.left, r.right)]
    return f"{brief(p)} by {brief(r.family)}, a {sides[0]}{odd[0]}, b {sides[1]}{odd[1]}"


def choice_of(route: Route) -> RouteChoice:
    """A route as a configuration."""
    p = route.problem
    along = not p.a_transposed, p.b_transposed
    lying = ["" if x is None else "along k" if k else "along rows" for x, k in zip(route.packings, along, strict=True)]
    return RouteChoice(route.kernel, p.parts, route.config, (lying[0], lying[1]), bool(p.lanes))


def tuned_route(r: Request, target: Target) -> Route | None:
    """The fastest route for a product; None if it was not tuned."""

    def known() -> dict[str, Route]:
        found = routes(r.problem, r.left, r.right, r.family, target)
        return {written(choice_of(route)): route for _, route in found}

    return look_up(MATMUL, lambda: key_of(r), known)


@dataclass(frozen=True)
class RouteTrial:
    """A product by one route. `structs`: those of a and b."""

    plan: Any
    structs: tuple[Any, Any]

    def stages(self, target: str | None) -> Any:
        a, b = self.structs
        return self.plan.lower(a, [b], [], target)

    def __call__(self, *args: Any, out: Any = None) -> Any:
        a, b = args
        return self.plan.run(a, [b], [], out, None, None)
