"""The instruction set of memory, synchronisation, copies and warps: a row each. See `rows`.

Elementwise instructions and matrix products have forms of their own in `semantics`.
"""

from __future__ import annotations

from . import rows_copies, rows_memory, rows_sync, rows_tensor, rows_warp
from .rows import ROWS, BadForm, Form, Row, Words, form_of, has_rows, known_form

TABLES = (rows_memory, rows_sync, rows_copies, rows_warp, rows_tensor)

__all__ = ["ROWS", "TABLES", "BadForm", "Form", "Row", "Words", "form_of", "has_rows", "known_form"]
