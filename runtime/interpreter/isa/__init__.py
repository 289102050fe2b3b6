"""The instruction set: a row or a form for each instruction, what it computes, and what follows from rows alone."""
