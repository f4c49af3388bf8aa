"""Putting models into MLflow's registry: versions with their cards, metadata and lineage."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import yaml
from mlflow import MlflowClient
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException

from pipelines.errors import redacted
from pipelines.recipes.files import flattened
from pipelines.registry.find import (
    CODE_TAG,
    COMPARISON_TAG,
    DIGEST_TAG,
    KIND_TAG,
    PROMOTED_TAG,
    REGISTERED,
    VERIFIED_TAG,
    entries,
    pages,
)
from pipelines.registry.lineage import described
from pipelines.registry.package import log_package, question_of
from pipelines.stage import IMPORTED
from pipelines.stages.evaluation import confidence_of
from pipelines.stages.figures import HEADER, Row, aligned, encoder_rows, task_rows
from pipelines.store import Artifact
from pipelines.tracking.tracker import COMPUTED_ON_TAG, FINGERPRINT_TAG, Tracker
from pipelines.train.metrics import numbers
from pipelines.versions import code_version

_MOST_CHARACTERS: Final = 4_900  # MLflow's SQL registry takes 5,000 of a description
_LIMITS: Final = {
    True: "It knows the language and the subjects of its corpus, and whatever bias that has.",
    False: "Its figures hold for texts like its held-out items; for other texts "
    "they were not measured. It answers any text, also one about something else.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A model to register: its artifact, what it was made from, and under which name."""

    kind: str  # "encoder", or the family of its task
    name: str
    alias: str  # of a version until it has proved itself
    artifact: Artifact
    lineage: Mapping[str, Artifact]  # by kind: corpus, vocabulary, examples, …
    recipe_yaml: str
    evaluation: Artifact | None = None  # of a task's model: what its card compares it with


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredModel:
    """A version in the registry."""

    kind: str
    name: str
    version: int
    run_id: str
    metrics: Mapping[str, float]  # as logged: what the loaded model must reproduce
    is_verified: bool
    awaits_promotion: bool  # True where a run that proved it ended before it was promoted
    reused: bool  # True where this artifact was registered before

    @property
    def reference(self) -> str:
        """This very version, as people read and type it; no alias can move it."""
        return f"{self.name}/{self.version}"

    @property
    def uri(self) -> str:
        """How MLflow addresses this very version."""
        return f"{REGISTERED}{self.reference}"


def register(submission: Submission, tracker: Tracker) -> RegisteredModel:
    """Register the model; an artifact is registered once, and a new version gets the alias.

    The version carries signature, input example, metrics and lineage tags: the fingerprints of
    everything it was made from, the code version and the flow run; the recipe lies with its run.
    A registration that broke off is taken up where it was. Raises MlflowException or, with one
    sentence, UserError where the tracker does not answer.
    """
    client = tracker.client()
    artifact, name = submission.artifact, submission.name
    metrics = numbers(artifact.statistics)
    made_from_it = f"name = '{name}' and tags.`{FINGERPRINT_TAG}` = '{artifact.fingerprint}'"
    versions = pages(client.search_model_versions, made_from_it)
    version = min(versions, key=lambda version: int(version.version), default=None)
    reused = version is not None
    if version is None:
        version = _create_version(submission, metrics, tracker, client)
    number = int(version.version)
    if not version.description:  # the card comes last
        client.set_registered_model_alias(name, submission.alias, str(number))
        client.update_model_version(name, str(number), model_card(submission, number))
    is_verified = version.tags.get(VERIFIED_TAG) == "true"
    is_refused = version.tags.get(f"{COMPARISON_TAG}.decision") == "not better"
    was_promoted = any(key.endswith(".reason") for key in entries(PROMOTED_TAG, version.tags))
    return RegisteredModel(
        kind=submission.kind, name=name, version=number, run_id=version.run_id or "",
        metrics=metrics, is_verified=is_verified, reused=reused,
        awaits_promotion=is_verified and not is_refused and not was_promoted,
    )  # fmt: skip


def _create_version(
    submission: Submission, metrics: Mapping[str, float], tracker: Tracker, client: MlflowClient
) -> ModelVersion:
    run_id = _run_of(submission, metrics, tracker)
    tags = {
        # The parent of a run is that of its training run; a version has none.
        **{key: value for key, value in tracker.tags.items() if not key.startswith("mlflow.")},
        **{f"bertsmith.{key}": each.fingerprint for key, each in submission.lineage.items()},
        FINGERPRINT_TAG: submission.artifact.fingerprint,
        KIND_TAG: submission.kind,
        CODE_TAG: code_version(),
    }
    tracker.set_tags(run_id, tags)
    tracker.client().log_text(run_id, redacted(submission.recipe_yaml), "recipe.yaml")
    recipe = yaml.safe_load(submission.recipe_yaml) or {}
    recipe.pop("runtime", None)  # where it ran; the tags name the machine
    tracker.log_params(run_id, dict(flattened(recipe)))
    logged = log_package(
        submission.kind, submission.artifact, run_id, tags, tracker, submission.evaluation
    )
    machine = entries(COMPUTED_ON_TAG, client.get_run(run_id).data.tags)
    try:
        client.create_registered_model(submission.name, description=_description(submission))
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    return client.create_model_version(
        submission.name,
        source=f"{REGISTERED}{logged.model_id}",
        run_id=run_id,
        tags={
            **tags,
            **{f"{COMPUTED_ON_TAG}.{key}": value for key, value in machine.items()},
            DIGEST_TAG: logged.tags[DIGEST_TAG],
        },
        model_id=logged.model_id,
    )


def _description(submission: Submission) -> str:
    kind, question = submission.kind, question_of(submission.kind, submission.artifact)
    of_task = f"model for {kind.replace('_', ' ')}"
    what = "encoder pretrained from raw text" if kind == "encoder" else of_task
    takes, gives = ", ".join(question.columns), ", ".join(question.answers)
    return f"A BERT {what}: takes {takes}, gives {gives}."


def _run_of(submission: Submission, metrics: Mapping[str, float], tracker: Tracker) -> str:
    """The run of the model's training; a new one where this tracker has none, as of an import."""
    artifact, fingerprint = submission.artifact, submission.artifact.fingerprint
    run = tracker.find_run(fingerprint)
    if run is not None:
        return run.info.run_id
    kind = "import" if artifact.kind == IMPORTED else submission.kind
    run_id = tracker.create_run(f"{kind}-{fingerprint[:8]}", fingerprint, {}, {})
    tracker.finish(run_id, metrics, computed_on=artifact.statistics.get("computed_on"))
    return run_id


def model_card(submission: Submission, number: int) -> str:
    """Markdown: what version `number` is, its figures and their baselines, and how to use it.

    The sections are those of Mitchell et al., "Model Cards for Model Reporting" (2019), as far as
    a recipe knows them. It has at most as many characters as the registry takes.
    """
    artifact, name = submission.artifact, submission.name
    example = json.dumps(dict(question_of(submission.kind, artifact).example))
    whole_lineage = (*submission.lineage.values(), artifact)
    made_from = {each.fingerprint: described(each) for each in whole_lineage}
    figures = _figures(submission)
    parts = [
        _description(submission),
        "## Made from\n\n"
        + "\n".join(
            f"- {title} `{fingerprint}`: {headline}"
            for fingerprint, (title, headline) in made_from.items()
        ),
        *(["## Held-out figures\n\n" + "\n".join(aligned(HEADER, figures))] if figures else ()),
        *(() if artifact.manifest.settings.get("seed") is None else (_seeds(artifact),)),
        f"## Limits\n\n{_LIMITS[submission.kind == 'encoder']}",
        "## Use\n\n```python\nimport mlflow\n\nmodel = mlflow.pyfunc.load_model("
        f'"{REGISTERED}{name}/{number}")\nmodel.predict([{example}])\n```\n\n'
        f"That is this version; `{REGISTERED}{name}@champion` is the one that people use now.",
    ]
    return redacted("\n\n".join(parts))[:_MOST_CHARACTERS]


def _figures(submission: Submission) -> list[Row]:
    statistics, evaluation = submission.artifact.statistics, submission.evaluation
    if submission.kind == "encoder":
        return encoder_rows(statistics)
    if evaluation is None:
        return task_rows(statistics, statistics) if "score" in statistics else []
    return task_rows(statistics, evaluation.statistics) + confidence_of(evaluation)


def _seeds(artifact: Artifact) -> str:
    """How much the main figure depends on the seed."""
    seed = artifact.manifest.settings.get("seed")
    statistics, score = artifact.statistics, artifact.statistics.get("score", "")
    deviation = statistics.get(f"deviation/{score}")
    if deviation is None:
        return f"Trained once, with the seed {seed}; how much another seed changes is unknown."
    return (
        f"The best of {statistics['num_seeds']} seeds, from {seed} on, whose {score} is "
        f"{statistics[f'mean/{score}']:.4f} in the mean with a standard deviation of "
        f"{deviation:.4f}."
    )
