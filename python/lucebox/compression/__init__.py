"""Prompt compression: a small model, the scorer, reads a long prompt; the target computes the parts that matter."""
