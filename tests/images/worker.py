"""What the compiling process of `fake_gpu.py` runs."""

from __future__ import annotations

from typing import Any

from kernel_dsl.runtime.custom import nvrtc


def compile_ptx(text: str, more: dict[str, Any]) -> bytes:
    """PTX of a text."""
    return nvrtc.compile_source(text, kind="ptx", **more)
