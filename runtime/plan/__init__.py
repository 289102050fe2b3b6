"""Calls and launches: checks, bound calls, and fast paths for repeated calls."""
