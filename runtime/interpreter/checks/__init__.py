"""What is wrong with a kernel: who accessed what and in which order, unwritten data, waits that never end, and its wording."""
