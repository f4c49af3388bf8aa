"""Stage: a corpus in, WordPiece tokens out, the same bytes in every run."""

from pipelines.stage import Stage

VOCABULARY = Stage(
    name="vocabulary",
    section="vocabulary",
    title="vocabulary",
    command="vocabulary",
    purpose="Learn the WordPiece vocabulary from the training part of the corpus.",
    example="bertsmith vocabulary --set vocabulary.size=16000",
    kind="vocabulary",
    version=1,
    needs=("corpus",),
    build="pipelines.stages.vocabulary.stage:build_vocabulary",
    headline=lambda statistics: f"{statistics['size']:,} tokens",
)
