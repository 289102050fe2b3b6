"""The GPU and the interpreter as devices: memory, streams, launches."""
