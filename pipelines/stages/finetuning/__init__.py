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
    title="fine-tuning",
    kind="finetuned",
    version=4,
    headline=headline,
)
