"""Stage: what a classifier answers on held-out texts, label by label."""

from pipelines.core.stage import Stage

EVALUATION = Stage(
    name="evaluation",
    section="",
    title="evaluation",
    command="evaluate",
    purpose="Evaluate the recipe's classifier on its held-out texts, label by label.",
    example="bertsmith evaluate --model bertsmith-classifier@champion --labels more.csv",
    kind="evaluation",
    version=1,
    needs=("finetuning", "labelled"),
    build="pipelines.stages.evaluation.stage:build_evaluation",
    headline=lambda statistics: f"accuracy {statistics['eval/accuracy']:.1%}",
)
