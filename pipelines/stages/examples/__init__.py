"""Stage: documents in, training examples in Arrow shards out, and reading them back."""

from pipelines.stage import Stage

EXAMPLES = Stage(
    name="examples",
    section="examples",
    title="examples",
    command="examples",
    purpose="Write masked-language-model and next-sentence examples as Arrow shards.",
    example="bertsmith examples --set examples.max_tokens=64",
    kind="examples",
    version=2,
    needs=("corpus", "vocabulary"),
    build="pipelines.stages.examples.stage:build_examples",
    headline=lambda statistics: f"{statistics['train']['examples']:,} training examples",
)
