"""Custom kernels: CUDA C++, PTX, cubins, fat binaries."""
