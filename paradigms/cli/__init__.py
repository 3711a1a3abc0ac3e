"""The command `paradigms`: index, search, rerank, explain, compare, serve, mcp, export and others."""
