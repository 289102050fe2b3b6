"""Tests of the Hopper parts run under each schedule."""

from tests.schedules import interpret

__all__ = ["interpret"]
