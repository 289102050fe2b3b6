"""Collectives on a mesh, and the exchange of experts' tokens."""
