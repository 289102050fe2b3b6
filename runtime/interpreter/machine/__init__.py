"""The machine of a launch: warps in batches, their registers, memories and barriers, and operations in flight."""
