"""The execution of each row of the instruction set, a file for each family."""
