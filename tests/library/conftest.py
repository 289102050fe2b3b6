"""Tests of the library run under each schedule."""

from tests.schedules import interpret

__all__ = ["interpret"]
