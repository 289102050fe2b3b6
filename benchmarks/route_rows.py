"""The ways to compute one product, beside each other: what `kd.library.matmul` chose among, and what each way takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from kernel_dsl.library.product_routes.routes import Route, routes
from kernel_dsl.library.products.arguments import request
from kernel_dsl.library.products.matmul_options import MatmulOptions
from kernel_dsl.library.products.plan import plan_by
from kernel_dsl.stages import target_named

CLOCK = 1755e6  # of the model's clocks


def words_of(route: Route) -> str:
    """A route in a few words."""
    t: Any = route.config
    found = [route.kernel, f"{t.tile_m}x{t.tile_n}x{t.tile_k}", f"stages {t.stages}"]
    if route.problem.parts > 1:
        found.append(f"parts {route.problem.parts}")
    if any(route.packings):
        found.append("packed")
    found += [word for word in ("swapped", "ping_pong") if getattr(t, word, False)]
    if getattr(t, "cluster", 1) * getattr(t, "cluster_n", 1) > 1:
        found.append(f"cluster {t.cluster}x{t.cluster_n}")
    return " ".join(found)


def ways(a: Any, b: Any, precision: str | None, out: Any, count: int) -> Iterator[tuple[str, float, Callable[[], Any]]]:
    """(words, seconds by the cost model, a call) of the best `count` routes of each kernel, by that model."""
    machine = target_named(None)
    r = request(a, b, MatmulOptions(precision=precision), out)
    found = sorted(routes(r.problem, r.left, r.right, r.family, machine), key=lambda x: x[0])
    taken: dict[str, int] = {}
    seen: set[str] = set()
    for clocks, route in found:
        words = words_of(route)
        if words in seen or taken.get(route.kernel, 0) >= count:
            continue
        seen.add(words)
        taken[route.kernel] = taken.get(route.kernel, 0) + 1
        plan = plan_by(r, route, machine.limits.multiprocessors)
        yield words, clocks / CLOCK, lambda plan=plan: plan.run(a, [b], [], out, None, None)
