"""The command `python -m paradigms`: index, search, rerank, explain, compare, serve, export and others."""
