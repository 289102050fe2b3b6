"""Errors of the semantics: both name the instruction, as an assembler's log would."""

from __future__ import annotations


class UnknownInstruction(ValueError):
    """The leading word of a mnemonic is no instruction that this interpreter computes."""

    def __init__(self, opcode: tuple[str, ...]) -> None:
        self.opcode = opcode
        super().__init__(f"unknown instruction '{'.'.join(opcode)}'")


class BadModifier(ValueError):
    """The instruction is known, this combination of modifiers and types is not."""

    def __init__(self, opcode: tuple[str, ...], why: str) -> None:
        self.opcode = opcode
        self.why = why
        super().__init__(f"illegal form '{'.'.join(opcode)}': {why}")
