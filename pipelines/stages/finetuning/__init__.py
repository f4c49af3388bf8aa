"""Stage: from a pretrained encoder and labelled texts to a classifier."""

from pipelines.core.stage import Stage

FINETUNING = Stage(
    name="finetuning",
    section="finetuning",
    title="fine-tuning",
    command="finetune",
    purpose="Fine-tune a classifier from the pretrained encoder and, to compare, from random "
    "weights.",
    example="bertsmith finetune demo --labels reviews.csv",
    kind="classifier",
    version=3,
    needs=("labelled", "pretraining"),
    build="pipelines.stages.finetuning.stage:build_classifier",
    variants=lambda settings: (
        {"fine-tuning, random": {"initialization": "random"}}
        if settings.compare_with_random
        else {}
    ),
    headline=lambda statistics: f"accuracy {statistics['eval/accuracy']:.1%}",
)
