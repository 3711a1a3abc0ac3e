"""Generative retrieval: a sequence-to-sequence model writes the identifiers of relevant documents."""
