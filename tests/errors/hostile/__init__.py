"""Wrong calls of everything public, made from its signatures.

    python -m tests.errors.hostile --count 59000 --seed 7 --jobs 2

For each parameter of each public callable it substitutes hostile values, beside arguments that are right where some were
found; then two at a time. A call may be accepted, or raise a `kd.Error` that ends at the caller's line, whose text can be
made, within five seconds of processor time. Nothing is listed here by name: functions come from `__all__`, methods from the classes of what
calls return, and right arguments from trying.
"""
