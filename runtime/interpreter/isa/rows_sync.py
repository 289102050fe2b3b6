"""Rows of barriers, fences and the control of launches (PTX ISA 9.7.13)."""

from __future__ import annotations

from ..ptx.module import Imm, Reg
from .rows import Operands, Words, row

NAMED = 16  # named barriers of a block


def _reduction(w: Words, operands: Operands) -> str:
    return "" if (w["op"] == "popc") == (w["type"] == "u32") else f".{w['op']} does not make .{w['type']}"


def _numbers(w: Words, operands: Operands) -> str:
    first = 1 if "op" in w else 0
    barrier, count = operands[first], operands[first + 1] if len(operands) > 2 * first + 1 else None
    if isinstance(barrier, Imm) and not 0 <= barrier.value < NAMED:
        return f"barrier {barrier.value}: a block has {NAMED}"
    return "the thread count is a multiple of 32" if isinstance(count, Imm) and count.value % 32 else ""


def _counted(w: Words, operands: Operands) -> str:
    count = operands[1]
    return "the thread count is not 0" if isinstance(count, Imm) and not count.value else ""


for _names, _aligned in (("bar", "bar.cta"), ""), (("barrier", "barrier.cta"), " aligned?"):
    for _name in _names:
        row(_name, "action=sync" + _aligned, "S:u32 S:u32?", _numbers, waits=True)
        row(_name + ".arrive", _aligned, "S:u32 S:u32", _numbers, _counted, waits=True)
        row(
            _name + ".red",
            "op=popc|and|or type=u32|pred" + _aligned,
            "D! S:u32 S:u32? P",
            _reduction,
            _numbers,
            waits=True,
        )
row("bar.warp.sync", "", "S:u32", waits=True)
row("barrier.cluster.arrive", "order=release|relaxed? aligned?", "", waits=True)
row("barrier.cluster.wait", "order=acquire? aligned?", "", waits=True)


def _fence(w: Words, operands: Operands) -> str:
    if not w["scope"]:
        return "a scope is missing"
    if w["init"] and w["restrict"]:  # ptxas takes some of these, but the ISA has none
        return f".mbarrier_init with .{w['restrict']} is not supported"
    if w["init"]:
        return "" if (w["sem"], w["scope"]) == ("release", "cluster") else ".mbarrier_init is .release.cluster"
    return _restricted(w) if w["restrict"] else ""


def _restricted(w: Words) -> str:
    side = {"acquire": "cluster", "release": "cta"}.get(w["sem"], "")
    fits = w["restrict"] == f"sync_restrict::shared::{side}" and w["scope"] == "cluster"
    return (
        ""
        if fits
        else ".sync_restrict::shared::cluster is .acquire.cluster, .sync_restrict::shared::cta .release.cluster"
    )


def _proxy(w: Words, operands: Operands) -> str:
    kind = w["kind"]
    if w["space"] and kind not in ("async", "tensormap::generic"):
        if kind == "async::generic":  # assemblers take it, but the ISA does not have it
            return f".{w['space']} is not supported with .async::generic"
        return f".{w['space']} goes with .async alone"
    if kind in ("alias", "async"):
        return f".{kind} takes no order" if w["sem"] or w["scope"] or operands else ""
    if kind == "async::generic":
        return _restricted(w) or ("takes no operands" if operands else "")
    if not w["sem"] or not w["scope"]:
        return "an order and a scope are wanted"
    if (w["sem"] == "acquire") != (len(operands) == 2):
        return "an acquire names the tensor map and its size, a release nothing"
    size = operands[1] if operands else None
    return "the size is 128" if isinstance(size, Imm) and size.value != 128 else ""


def _response(w: Words, operands: Operands) -> str:
    return "" if isinstance(operands[1], Reg) else "a response that is no register is not supported"


row("clusterlaunchcontrol.try_cancel.async",
    "space=shared::cta? done=mbarrier::complete_tx::bytes multicast=multicast::cluster::all? type=b128",
    "[~space] [~space]")  # fmt: skip
row("clusterlaunchcontrol.query_cancel.is_canceled.pred", "type=b128", "D!:pred S:b128", _response)
row("clusterlaunchcontrol.query_cancel.get_first_ctaid", "vec=v4 to=b32 from=b128", "D! S:b128", _response)
row(" ".join(f"clusterlaunchcontrol.query_cancel.get_first_ctaid::{axis}" for axis in "xyz"),
    "to=b32 from=b128", "D!:b32 S:b128", _response)  # fmt: skip

_RESTRICT = "restrict=sync_restrict::shared::cta|sync_restrict::shared::cluster?"
row("membar", "level=cta|gl|sys", "")
row("membar.proxy", "kind=alias", "")
row(
    "fence",
    "init=mbarrier_init? sem=acq_rel|sc|acquire|release? " + _RESTRICT + " scope=cta|cluster|gpu|sys?",
    "",
    _fence,
)
row("fence.proxy",
    "kind=alias|async|async::generic|tensormap::generic space=global|shared::cta|shared::cluster? "
    "sem=acquire|release? " + _RESTRICT + " scope=cta|cluster|gpu|sys?",
    "[/any]? #?", _proxy)  # fmt: skip
