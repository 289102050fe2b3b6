"""Tests of the cache must not hang: a process that does is ended, with the places of its threads."""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Generator

import pytest

SECONDS = 240  # of one test


@pytest.fixture
def nothing_hangs(pytestconfig: pytest.Config) -> Generator[None]:
    """End the process if the test takes longer. The traceback goes to the terminal: what pytest captures is lost with it."""
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        terminal = os.dup(2)
    faulthandler.dump_traceback_later(SECONDS, exit=True, file=terminal)
    yield
    faulthandler.cancel_dump_traceback_later()
    os.close(terminal)
