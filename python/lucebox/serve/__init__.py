"""A model behind HTTP APIs."""
