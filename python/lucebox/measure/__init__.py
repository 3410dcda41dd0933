"""Measures models: speed, drafts, quality and power. The command line shows the results."""
