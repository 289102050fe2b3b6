"""Errors of the semantics: both name the instruction, as an assembler's log would."""

from __future__ import annotations

# Instructions of PTX that are not interpreted: textures and surfaces (PTX ISA 9.7.10, 9.7.11), the stack (9.7.17), scalar
# video instructions (9.7.19.1), and those of sm_100 (9.7.13.16, 9.7.16).
_NOT_INTERPRETED = (
    "alloca", "clusterlaunchcontrol", "istypep", "stackrestore", "stacksave", "suld", "suq", "sured", "sust", "tex",
    "tld4", "txq", "vabsdiff", "vadd", "vmad", "vmax", "vmin", "vset", "vshl", "vshr", "vsub",
)  # fmt: skip


class UnknownInstruction(ValueError):
    """The error of a mnemonic whose first word names no instruction of this interpreter."""

    def __init__(self, opcode: tuple[str, ...]) -> None:
        self.opcode = opcode
        name = ".".join(opcode)
        if opcode[0] in _NOT_INTERPRETED:
            super().__init__(
                f"'{name}' is an instruction that is not interpreted (docs/ptx-coverage.md has those that are)"
            )
        else:
            super().__init__(f"unknown instruction '{name}'")


class BadModifier(ValueError):
    """The error of a known instruction with a combination of modifiers and types that does not exist."""

    def __init__(self, opcode: tuple[str, ...], why: str) -> None:
        self.opcode = opcode
        self.why = why
        super().__init__(f"illegal form '{'.'.join(opcode)}': {why}")
