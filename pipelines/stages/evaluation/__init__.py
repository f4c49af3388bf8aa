"""Stage: what a fine-tuned model answers on held-out items."""

from pipelines.stage import Stage
from pipelines.stages.finetuning import headline

EVALUATION = Stage(
    name="evaluation",
    title="evaluation",
    kind="evaluation",
    version=5,
    headline=headline,
)
