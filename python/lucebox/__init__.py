"""LLM inference compiled ahead of time for the one chip you own."""
