"""Kernels that were not traced: CUDA C++, PTX, cubins, fat binaries."""
