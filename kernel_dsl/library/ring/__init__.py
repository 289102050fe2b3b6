"""Attention over keys that several devices hold, and its gradients."""
