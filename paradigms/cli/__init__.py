"""Search from the terminal: `python -m paradigms` with index, search, rerank, explain and compare."""
