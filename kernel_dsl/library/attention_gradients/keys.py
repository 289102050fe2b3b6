"""The keys of a block of attention's backward: one block's for each block of the launch, or keys after keys if blocks stay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import kernel_dsl as kd

from ..stage_product import following_slot
from .results import WalkResults


@dataclass(frozen=True)
class Visit:
    """A part of the work by its `number`: how many steps the block did before, and the slot of its keys in SMEM."""

    number: Any
    begun: Any = 0
    slot: Any = 0


class WalkKeys(WalkResults):
    """The walk's keys and values in SMEM. If blocks stay, the next ones are loaded beside the steps of these."""

    def first_slots(self, block: Any) -> tuple[Any, Any]:
        """The stages of queries and of their gradients for a block's first step."""
        begun = block.visit.begun
        return (kd.rem(begun, self.t.stages), kd.rem(begun, self.t.dout_stages)) if self.stays else (0, 0)

    def following_slots(self, slot: Any, dout_slot: Any) -> tuple[Any, Any]:
        """The stages of the step after one."""
        stages = self.t.dout_stages
        return following_slot(slot, self.t.stages), following_slot(dout_slot, stages) if stages > 1 else 0

    def numbered(self, block: Any, number: Any) -> Any:
        """The number of a step, counted from the first one of all parts of the block."""
        return number + block.visit.begun if self.stays else number

    def key_smem(self, s: dict[str, Any], block: Any) -> Any:
        """The SMEM of a block's keys."""
        return s["k_smem"].at[block.visit.slot] if self.stays else s["k_smem"]

    def value_smem(self, s: dict[str, Any], block: Any) -> Any:
        """The SMEM of a block's values."""
        return s["v_smem"].at[block.visit.slot] if self.stays else s["v_smem"]

    def keys_loaded(self, s: dict[str, Any], block: Any, number: int) -> Any:
        """The barrier of the loads of a block's keys (`number` 0), or values (1)."""
        return s["kv_loaded"].at[2 * block.visit.slot + number if self.stays else number]

    def load_keys(self, block: Any, step: Any, s: dict[str, Any], load: Callable[[Any, Any], None]) -> None:
        """At a block's first step: load its keys, by `load(SMEM, barrier)`, when the SMEM is free."""

        @kd.when(step.number == block.visit.begun)
        def _() -> None:
            if self.stays:
                kd.barrier_wait(s["kv_consumed"].at[block.visit.slot])
            load(self.key_smem(s, block), self.keys_loaded(s, block, 0))

    def load_values(self, block: Any, step: Any, s: dict[str, Any], load: Callable[[Any, Any], None]) -> None:
        """The same for its values, whose SMEM is free together with that of the keys."""

        @kd.when(step.number == block.visit.begun)
        def _() -> None:
            load(self.value_smem(s, block), self.keys_loaded(s, block, 1))
