"""Dependencies by ranges against a byte-by-byte model, and plans of memory against their rule."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kernel_dsl.runtime.graph.plan import ALIGNMENT, Dependencies, MemoryBlock, ancestors, needed, place

_RANGE = st.tuples(st.integers(0, 24), st.integers(0, 10)).map(lambda r: (r[0], r[0] + r[1]))
_NODES = st.lists(st.tuples(st.lists(_RANGE, max_size=3), st.lists(_RANGE, max_size=2)), max_size=12)


def by_bytes(nodes):
    """The nodes each one must wait for, from who touched each byte since its last write."""
    writer: dict[int, int] = {}
    readers: dict[int, set[int]] = {}
    waits = []
    for node, (reads, writes) in enumerate(nodes):
        deps = set()
        for start, end in reads:
            for at in range(start, end):
                deps |= {writer[at]} if at in writer else set()
                readers.setdefault(at, set()).add(node)
        for start, end in writes:
            for at in range(start, end):
                deps |= readers.get(at, set())
                deps |= {writer[at]} if at in writer else set()
                writer[at], readers[at] = node, set()
        waits.append(deps - {node})
    return waits


@settings(max_examples=120, deadline=None)
@given(_NODES)
def test_ranges_give_what_single_bytes_give(nodes) -> None:
    tracker = Dependencies()
    got = [tracker.access(i, reads, writes) for i, (reads, writes) in enumerate(nodes)]
    assert got == by_bytes(nodes)


def test_a_partial_overwrite_leaves_the_rest_to_its_writer() -> None:
    tracker = Dependencies()
    assert tracker.access(0, [], [(0, 100)]) == set()
    assert tracker.access(1, [], [(40, 60)]) == {0}
    assert tracker.access(2, [(0, 40)], []) == {0}
    assert tracker.access(3, [(45, 50)], []) == {1}
    assert tracker.access(4, [(30, 45)], []) == {0, 1}
    assert tracker.access(5, [], [(60, 100)]) == {0}
    assert tracker.access(6, [], [(0, 10)]) == {0, 2}
    assert tracker.access(7, [(100, 200)], [(200, 300)]) == set()


@st.composite
def _graphs(draw):
    count = draw(st.integers(1, 12))
    waits = [set(draw(st.lists(st.integers(0, i - 1), max_size=4))) if i else set() for i in range(count)]
    early = draw(st.lists(st.booleans(), min_size=count, max_size=count))
    return waits, early


@settings(max_examples=200, deadline=None)
@given(_graphs())
def test_edges_left_out_follow_from_the_others(graph) -> None:
    waits, _ = graph
    plain = [False] * len(waits)
    above = ancestors(waits, plain)
    kept = needed(waits, above)
    assert ancestors(kept, plain) == above
    for deps, all_deps in zip(kept, waits, strict=True):
        assert set(deps) <= all_deps


@settings(max_examples=200, deadline=None)
@given(_graphs())
def test_an_early_launch_orders_nothing_but_what_came_before_its_neighbours(graph) -> None:
    waits, early = graph
    above = ancestors(waits, early)
    kept = needed(waits, above)
    for node, deps in enumerate(waits):
        for dep in deps:
            # An edge goes only where another kept edge already makes `dep` end first.
            assert dep in kept[node] or any(above[other] >> dep & 1 for other in kept[node])
        if early[node]:
            assert not any(above[node] >> dep & 1 for dep in kept[node])


@settings(max_examples=200, deadline=None)
@given(_graphs(), st.data())
def test_blocks_share_bytes_only_where_one_is_done_before_the_other(graph, data) -> None:
    waits, early = graph
    above = ancestors(waits, early)
    nodes = st.integers(0, len(waits) - 1)
    blocks = data.draw(
        st.lists(
            st.builds(
                MemoryBlock, st.integers(1, 2000), st.frozensets(nodes, min_size=1, max_size=3),
                st.booleans(),
            ),
            max_size=8,
        )
    )  # fmt: skip
    total = place(blocks, above)
    for i, a in enumerate(blocks):
        assert a.offset % ALIGNMENT == 0 and a.offset + a.nbytes <= total
        for b in blocks[:i]:
            if a.offset < b.offset + b.nbytes and b.offset < a.offset + a.nbytes:
                assert not a.alone and not b.alone
                first = all(above[v] >> u & 1 for u in a.users for v in b.users)
                second = all(above[u] >> v & 1 for u in a.users for v in b.users)
                assert first or second


def test_a_chain_needs_two_blocks() -> None:
    waits = [set() if i == 0 else {i - 1} for i in range(10)]
    above = ancestors(waits, [False] * 10)
    blocks = [MemoryBlock(1024, frozenset({i, i + 1})) for i in range(9)]
    assert place(blocks, above) == 2048
