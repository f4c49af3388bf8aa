"""The model card of a version: what it is, its figures and their baselines, and how to use it.

The sections are those of Mitchell et al., "Model Cards for Model Reporting" (2019), as far as a
recipe knows them.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from bert_core.inference.tables import Question, question_of_class
from bert_core.model.catalogue import EncoderModel
from bert_core.training.state import model_class_in
from pipelines.errors import redacted
from pipelines.stages import STAGES
from pipelines.stages.evaluation import beside
from pipelines.store import Artifact
from pipelines.tasks import family, family_names

_COMPARED: Final = "\n\n## Compared\n\n"
_MOST_CHARACTERS: Final = 4_900  # MLflow's SQL registry takes 5,000 of a description
_LIMITS: Final = {
    "encoder": "It knows the language and the subjects of its corpus, and whatever bias that has.",
    "task": "Its figures hold for texts like its held-out items; for other texts "
    "they were not measured. It answers any text, also one about something else.",
}


def model_card(
    kind: str,
    what: str,
    reference: str,
    artifact: Artifact,
    lineage: Mapping[str, Artifact],
    evaluation: Artifact | None = None,
) -> str:
    """Markdown of at most as many characters as the registry takes; `reference` is name/version.

    `evaluation` knows what a task's model is compared with.
    """
    statistics = {**(evaluation.statistics if evaluation else {}), **artifact.statistics}
    example = json.dumps(dict(question_of(kind, artifact).example))
    parts = [
        what,
        "## Made from\n\n" + "\n".join(_made_from(artifact, lineage)),
        "## Held-out figures\n\n| figure | reached | to compare |\n|---|---|---|\n"
        + "\n".join(_figures(statistics)),
        _seeds(artifact),
        "## Limits\n\n" + _limits(kind, lineage),
        "## Use\n\n```python\nimport mlflow\n\nmodel = mlflow.pyfunc.load_model("
        f'"models:/{reference}")\nmodel.predict([{example}])\n```\n\n'
        f"That is this version; `models:/{reference.partition('/')[0]}@champion` is the one that "
        "people use now.",
    ]
    return _cut(redacted("\n\n".join(parts)))


def question_of(kind: str, artifact: Artifact) -> Question:
    """What the model is asked; an encoder, whatever heads it has, is asked for embeddings."""
    if kind == "encoder":
        return question_of_class(EncoderModel)
    return question_of_class(model_class_in(artifact.local_folder()))


def with_comparison(description: str, reason: str) -> str:
    """A card with the result of the version's comparison, in place of an earlier one."""
    card, _, _ = description.partition(_COMPARED)
    added = f"{_COMPARED}{reason[:1].upper()}{reason[1:1_500]}."
    return _cut(card, _MOST_CHARACTERS - len(added)) + added


def headline(artifact: Artifact) -> str:
    """The count or figure that describes an artifact best."""
    stage = STAGES.get(artifact.kind)
    if stage is None:
        return str(artifact.statistics.get("source", "given"))
    try:
        return stage.headline(artifact.statistics)
    except KeyError:  # an encoder that was trained elsewhere counts other things
        return "made elsewhere"


def _made_from(artifact: Artifact, lineage: Mapping[str, Artifact]) -> list[str]:
    all_of_it = {each.fingerprint: each for each in (*lineage.values(), artifact)}
    lines = [
        f"- {title_of(each)} `{fingerprint}`: {headline(each)}"
        for fingerprint, each in all_of_it.items()
    ]
    dataset = lineage.get("dataset")
    if dataset is not None:
        items = dataset.statistics["items"]
        labels = dataset.statistics["labels"]
        lines.append(
            f"- {items['train']:,} training items and {items['heldout']:,} held out"
            + (f"; labels: {', '.join(map(_literal, labels[:20]))}" if labels else "")
        )
    return lines


def _literal(label: str) -> str:
    """A label of somebody's data as code, so that it cannot be markup."""
    return f"`{' '.join(label.split()).replace('`', chr(39))}`"


def _figures(statistics: Mapping[str, Any]) -> list[str]:
    """The main score first; each figure with its baselines."""
    names = [name for name in statistics if name.startswith("eval/") and name.count("/") == 1]
    names.sort(key=lambda name: name != statistics.get("score"))
    rows = []
    for name in names:
        metric = name.removeprefix("eval/")
        compared = ", ".join(
            f"{what} {value:.4f}" for what, value in beside(statistics, metric).items()
        )
        rows.append(f"| {metric.replace('_', ' ')} | {statistics[name]:.4f} | {compared} |")
    return rows


def _limits(kind: str, lineage: Mapping[str, Artifact]) -> str:
    sentences = [_LIMITS["encoder" if kind == "encoder" else "task"]]
    examples = lineage.get("examples")
    if examples is not None:
        sentences.append(
            f"It was pretrained on at most {examples.statistics['max_tokens']} tokens a text."
        )
    if kind in family_names() and family(kind).form in ("texts", "label_lists"):
        sentences.append("Longer texts than it reads are cut at their end.")
    return " ".join(sentences)


def title_of(artifact: Artifact) -> str:
    """What an artifact is called, such as `encoder`."""
    stage = STAGES.get(artifact.kind)
    return artifact.kind if stage is None else stage.title


def _seeds(artifact: Artifact) -> str:
    """How much the main figure depends on the seed."""
    seed = artifact.manifest.settings.get("seed", "of another tool")
    statistics = artifact.statistics
    score = statistics.get("score", "")
    deviation = statistics.get(f"deviation/{score}")
    if deviation is None:
        return (
            f"Trained once, with the seed {seed}; one training run does not show how much another "
            "seed changes."
        )
    return (
        f"The best of {statistics['num_seeds']} seeds, from {seed} on, whose "
        f"{score.removeprefix('eval/').replace('_', ' ')} is {statistics[f'mean/{score}']:.4f} in "
        f"the mean with a standard deviation of {deviation:.4f}"
        + (f", and of {statistics['num_trials']} trials." if statistics["chosen"] else ".")
    )


def _cut(text: str, most: int = _MOST_CHARACTERS) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
