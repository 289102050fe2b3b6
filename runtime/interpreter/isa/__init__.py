"""The instruction set: a row or a form for each instruction, its semantics, and data derived from rows."""
