"""The vocabulary stage: a corpus in, WordPiece pieces out, the same bytes in every run."""
