"""Attention: calls, options, masks and the kernels."""
