"""Stage: a corpus in, WordPiece tokens out, the same bytes in every run."""

from pipelines.stage import Stage

VOCABULARY = Stage(
    name="vocabulary",
    title="vocabulary",
    kind="vocabulary",
    version=1,
    headline=lambda statistics: f"{statistics['size']:,} tokens",
)
