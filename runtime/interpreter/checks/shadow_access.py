"""An access as shadow memory checks it: who accesses, and what they know."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..ptx.module import Imm, Instruction

if TYPE_CHECKING:
    from ..machine.group import Group

Array = npt.NDArray[Any]


class ShadowAccess:
    """One access to check: its agents, one for each row, their clocks, and what they know.

    `known` (rows, planes, columns); `agent`, `team` and `clock` (rows,). `strong`: the access is atomic or volatile; two
    strong accesses do not race if they are morally strong (`strong.py`).
    """

    __slots__ = (
        "agent",
        "c",
        "clash",
        "clock",
        "ins",
        "known",
        "loaded",
        "proxy",
        "queue",
        "reach",
        "same",
        "site",
        "strong",
        "team",
    )

    def __init__(
        self, c: Group, known: Array, team: Array, agent: Array, clock: Array, ins: Instruction,
        strong: bool, proxy: bool,
    ) -> None:  # fmt: skip
        self.c: Group = c
        self.known: Array = known
        self.team: Array = team
        self.agent: Array = agent
        self.clock: Array = clock
        self.ins: Instruction = ins
        self.strong: bool = strong
        self.proxy: bool = proxy
        self.queue: bool = c.batch.clocks is not None and int(agent[0]) >= c.batch.clocks.agents
        self.site: int = c.batch.run.site(ins)
        self.same: Any = None
        self.clash: Any = None
        self.loaded: Any = None  # for an ordinary load: granules (rows, 32) or (rows, 32, k), mask, elements
        self.reach: int = 0  # the scope of a strong access: 2 is its block, 1 its cluster, 0 more


def adds_nothing(ins: Instruction) -> bool:
    """Return whether an instruction reads a word by an atomic addition or `or` of 0."""
    given = ins.operands[2:3]
    return (
        ins.opcode[0] == "atom"
        and ins.opcode[-2] in ("add", "or")
        and isinstance(given[0], Imm)
        and given[0].value == 0
    )


def generic_access(c: Group, ins: Instruction, strong: bool) -> ShadowAccess:
    """Return the access of each warp of `c`."""
    batch = c.batch
    agent = batch.row_agent[c.rows]
    known = batch.clocks.of(c)
    clock = known[np.arange(c.n), 0, agent].astype(np.int64)
    return ShadowAccess(c, known, batch.row_team[c.rows], agent, clock, ins, strong, False)
