"""Hazards of a kernel: unordered accesses, unwritten data, waits that never end, and their messages."""
