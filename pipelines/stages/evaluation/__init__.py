"""Stage: what a fine-tuned model answers on held-out items."""

from pipelines.stage import Stage
from pipelines.stages.finetuning import headline

EVALUATION = Stage(
    name="evaluation",
    section="",
    title="evaluation",
    command="evaluate",
    purpose="Evaluate the recipe's fine-tuned model on its held-out items.",
    example="bertsmith evaluate --model bertsmith-classifier@champion --labels more.csv",
    kind="evaluation",
    version=4,
    needs=("finetuning", "dataset"),
    build="pipelines.stages.evaluation.stage:build_evaluation",
    headline=headline,
)
