"""A decoder of four layers whose products, attention and loss are the library's: trained, served, and shared by two devices."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager

EVERY = 4.0  # seconds after which a command says again that it is at work
_BEGAN = time.monotonic()


def say(words: str) -> None:
    """Print a line on standard error at once: the seconds since the start, and the present work."""
    print(f"{time.monotonic() - _BEGAN:6.1f} s  {words}", file=sys.stderr, flush=True)


@contextmanager
def at_work(what: str) -> Generator[None]:
    """Say what happens, and say it again every `EVERY` seconds until it ends."""
    say(what)
    over = threading.Event()

    def repeat() -> None:
        while not over.wait(EVERY):
            say(f"still: {what}")

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
