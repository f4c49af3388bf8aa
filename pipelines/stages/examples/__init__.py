"""Stage: documents in, training examples in Arrow shards out, and reading them back."""

from pipelines.stage import Stage

EXAMPLES = Stage(
    name="examples",
    title="examples",
    kind="examples",
    version=2,
    headline=lambda statistics: f"{statistics['train']['examples']:,} training examples",
)
