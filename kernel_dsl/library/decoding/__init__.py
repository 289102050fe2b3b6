"""Attention of a few new queries over a cache, and over latent keys."""
