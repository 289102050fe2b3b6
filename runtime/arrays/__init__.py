"""Arrays of every framework, as views."""
