"""Launches on several devices at the same time: real GPUs of this host, or the interpreter's."""
