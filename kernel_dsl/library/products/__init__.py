"""Products of two matrices: calls, their arguments and options, packed and sparse operands, gradients."""
