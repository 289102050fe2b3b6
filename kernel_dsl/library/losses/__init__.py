"""Cross-entropy of a linear layer, without logits in memory."""
