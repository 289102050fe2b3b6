"""JAX as these tests need it: several virtual CPUs, so that a gradient over a mesh is a sum; and exact products on a GPU."""

from __future__ import annotations

import os

# Its products of float32 are the references; on a GPU they would be of tf32.
os.environ.setdefault("JAX_DEFAULT_MATMUL_PRECISION", "highest")
_FLAG = "--xla_force_host_platform_device_count"
if _FLAG not in os.environ.get("XLA_FLAGS", ""):  # read when JAX first needs a device
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_FLAG}=4".strip()
