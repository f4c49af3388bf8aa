"""An imported model in the registry: registered, loaded in a clean process, and compared."""

from collections.abc import Callable
from dataclasses import dataclass

import yaml

from bert_core.training.state import load_model
from pipelines.artifacts import Artifact
from pipelines.config.errors import UserError
from pipelines.recipes.registration import RegistrationSettings
from pipelines.registry.finding import version_with_alias
from pipelines.registry.promotion import promote
from pipelines.registry.registration import RegisteredModel, Submission, register
from pipelines.registry.verification import Proof, Verification, verify
from pipelines.stage import StageContext
from pipelines.tasks import family_of_model
from pipelines.tracking.tracker import Tracker
from pipelines.training.imported_models import IMPORTED
from pipelines.training.results import numbers

_OF_ENCODERS = ("encoder", "pretraining")


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredImport:
    """A version that was made of an imported model."""

    model: RegisteredModel
    verification: Verification | None  # None where it proved itself before
    alias: str  # the one it has: that of a champion where the name had none


def register_import(
    artifact: Artifact,
    name: str,
    context: StageContext,
    say: Callable[[str], None],
    task: str | None = None,
) -> RegisteredImport:
    """Register the imported model as a version of `name`, and prove it; `say` gets each step.

    It proves itself as every version does, in a process of its own with the code that it carries;
    what it repeats is its response to the texts that lie with it. Where the name has no champion it
    becomes that, else it stays a candidate. `task` says its kind where models of several tasks have
    such a head. Raises UserError for a head that no registered model has, VerificationError where
    it does not repeat its response.
    """
    assert artifact.kind == IMPORTED and context.tracker is not None
    tracker, names = context.tracker, RegistrationSettings()
    say(f"registering it as {name}")
    kind = _kind_of(artifact, task)
    if tracker.find_run(artifact.fingerprint) is None:
        run_id = tracker.create_run(
            f"import-{artifact.fingerprint[:8]}", artifact.fingerprint, {}, {}
        )
        tracker.finish(
            run_id, numbers(artifact.statistics), computed_on=artifact.statistics["computed_on"]
        )
    model = register(
        Submission(
            kind=kind,
            name=name,
            alias=names.candidate_alias,
            artifact=artifact,
            lineage={IMPORTED: artifact},
            recipe_yaml=_what_was_imported(artifact),
        ),
        tracker,
    )
    verification = None
    if not model.is_verified:
        say(f"loading {model.uri} in a fresh process, to compare its answers")
        proof = Proof(model=model, data=artifact)
        verification = verify([proof], context.store.url, tracker)[0]
    return RegisteredImport(
        model=model,
        verification=verification,
        alias=_promoted(model, tracker, names),
    )


def _kind_of(artifact: Artifact, task: str | None) -> str:
    head = artifact.statistics["head"]
    if head in _OF_ENCODERS:
        return "encoder"
    model = load_model(artifact.local_folder())
    kind = family_of_model(model, artifact.statistics["source"], task)
    if kind is None:
        raise UserError(
            f"a {head} model cannot be registered, because it answers no table; import it without "
            "--name, or keep its encoder alone with --head encoder"
        )
    return kind


def _promoted(model: RegisteredModel, tracker: Tracker, names: RegistrationSettings) -> str:
    """The alias that the version has now; a name's first version has none to beat."""
    champion = version_with_alias(tracker.client(), model.name, names.alias)
    if champion is None:
        reason = "imported by a person, and the name had no champion"
        promote(tracker, model.name, str(model.version), names.alias, reason)
        return names.alias
    return names.alias if int(champion.version) == model.version else names.candidate_alias


def _what_was_imported(artifact: Artifact) -> str:
    statistics = artifact.statistics
    return yaml.safe_dump(
        {
            "imported": {
                "source": statistics["source"],
                "files": statistics["source_files"],
                "read_by_version": artifact.manifest.version,
                **artifact.manifest.settings,
            }
        },
        sort_keys=False,
        allow_unicode=True,
    )
