"""Stage: text of any origin in, clean and deduplicated documents in Arrow shards out."""

from pipelines.stage import Stage

CORPUS = Stage(
    name="corpus",
    title="corpus",
    kind="corpus",
    version=3,
    headline=lambda statistics: f"{statistics['train']['documents']:,} training documents",
)
