"""The choice of the kernels of a product: families of dtypes, sizes, cost models, one kernel for any rows."""
