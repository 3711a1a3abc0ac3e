"""The command `python -m paradigms`: index, search, rerank, explain, export, compare and dimensions."""
