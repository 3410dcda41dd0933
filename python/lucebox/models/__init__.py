"""Models on disk: names, downloads, files and memory plans. Loads no weights."""
