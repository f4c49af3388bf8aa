"""Stage: text of any origin in, clean and deduplicated documents in Arrow shards out."""

from pipelines.stage import Stage

CORPUS = Stage(
    name="corpus",
    section="corpus",
    title="corpus",
    command="corpus",
    purpose="Read, clean and deduplicate the text, and divide it into train and held-out.",
    example="bertsmith corpus demo --workers 2",
    kind="corpus",
    version=2,
    build="pipelines.stages.corpus.stage:build_corpus",
    check="pipelines.stages.corpus.checks:check_inputs",
    uses_network=True,
    headline=lambda statistics: f"{statistics['train']['documents']:,} training documents",
)
