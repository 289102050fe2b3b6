"""The kernels of products: by TMA and wgmma, mma.sync, lanes and vectors; copies, epilogues and sums of parts."""
