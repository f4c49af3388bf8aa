"""Stage: from a pretrained encoder and labelled items to a model of their task."""

from pipelines.stage import Stage, Statistics


def headline(statistics: Statistics) -> str:
    """The family's main score of a fine-tuned model, and of how many seeds it is the best."""
    name = statistics["score"]
    score = f"{name.removeprefix('eval/').replace('_', ' ')} {statistics[name]:.1%}"
    if f"deviation/{name}" not in statistics:
        return score
    return (
        f"{score}, of {statistics['num_seeds']} seeds {statistics[f'mean/{name}']:.1%} "
        f"± {statistics[f'deviation/{name}']:.1%}"
    )


FINETUNING = Stage(
    name="finetuning",
    section="finetuning",
    title="fine-tuning",
    command="finetune",
    purpose="Fine-tune a model of the task from the pretrained encoder and, to compare, from "
    "random weights.",
    example="bertsmith finetune demo --labels reviews.csv",
    kind="finetuned",
    version=4,
    needs=("dataset", "pretraining"),
    build="pipelines.stages.finetuning.stage:build_task_model",
    check="pipelines.stages.finetuning.preparation:check_settings",
    cut="pipelines.stages.finetuning.settings:shared_split",
    uses_network=True,  # its run is opened at the tracker before the first step
    variants=lambda settings: (
        {"fine-tuning, random": {"initialization": "random"}}
        if settings.compare_with_random
        else {}
    ),
    headline=headline,
)
