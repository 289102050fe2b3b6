"""Measurements for users: functions beside their peers, and configurations in a tuning run."""
