"""Calls and launches: checked, bound, and made cheap where they come again."""
