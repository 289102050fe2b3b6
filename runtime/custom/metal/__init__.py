"""Kernels in Metal Shading Language."""
