"""What the machine does for each row of the instruction set, a file for each family."""
