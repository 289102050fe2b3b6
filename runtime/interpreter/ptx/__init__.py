"""PTX as text and as parsed: knows nothing of what instructions do."""
