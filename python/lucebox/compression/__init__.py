"""Prompt compression: a small model, the scorer, reads a long prompt; the target computes only the parts that matter."""
