"""Stage: from training examples to a pretrained encoder."""

from pipelines.stage import Stage

PRETRAINING = Stage(
    name="pretraining",
    title="pretraining",
    kind="encoder",
    version=4,
    headline=lambda statistics: f"{statistics['num_parameters']:,} parameters",
)
