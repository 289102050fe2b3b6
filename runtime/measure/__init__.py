"""What is measured for users: functions beside their peers, and configurations that are tuned."""
