"""Convolutions and their gradients as implicit products."""
