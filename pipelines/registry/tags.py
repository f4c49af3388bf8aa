"""How a version is addressed and tagged: what it is, what it proved, what is owed to it."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pipelines.config.errors import UserError

if TYPE_CHECKING:  # importing MLflow takes two seconds
    from mlflow.entities.model_registry import ModelVersion

REGISTERED: Final = "models:/"
KIND_TAG = "bertsmith.kind"
CODE_TAG = "bertsmith.code_version"
REQUIREMENTS_TAG = "bertsmith.requirements"  # the libraries that its package declares
DIGEST_TAG = "bertsmith.digest"  # of the list of what the package's files hash to
REGISTERED_AS_TAG = "bertsmith.registered_as"  # of a package: for which name it was made
OF_ENCODERS = ("eval/mlm_accuracy", "eval/clm_accuracy")  # what encoders prove themselves by
ANY_TASK: Final = "any task"  # in place of a kind: every model but encoders
VERIFIED_TAG = "bertsmith.verified"
COMPARISON_TAG = "bertsmith.comparison"  # .decision, .reason, .against, .difference, .interval, …
BETTER = "better"  # how the decision of a comparison begins where it was
PROOF_TAG = "bertsmith.proof"  # .loaded, .metric, .logged, .reproduced, .data, .comparison, …

# What a run still owes the version. It is taken away once it is done, so that every alias is
# given by a run at most once, by the one that made it due or the one that goes on after a crash.
OWED_TAG = "bertsmith.owed"
CANDIDATE = "candidate alias"
PROMOTION = "promotion"


def is_folder(reference: str) -> bool:
    """Whether a folder is meant: one that has a registered name is never what models:/ means."""
    return not reference.startswith(REGISTERED) and Path(reference).is_dir()


def task_of_kind(kind: str) -> str:
    """The family of tasks that a kind names; `classifier` is what classification was called."""
    return "classification" if kind == "classifier" else kind


def entries(prefix: str, tags: Mapping[str, str]) -> dict[str, str]:
    """The values of all tags below `prefix`, by the rest of their names."""
    return {
        key.removeprefix(f"{prefix}."): value
        for key, value in tags.items()
        if key.startswith(f"{prefix}.")
    }


def uri_of(version: "ModelVersion") -> str:
    """models:/name/number."""
    return f"{REGISTERED}{version.name}/{version.version}"


def digest_of(version: "ModelVersion") -> str:
    """The digest under which a version's package was registered.

    Raises UserError where it has none, and where its proof was made of another one.
    """
    digest = version.tags.get(DIGEST_TAG)
    if digest is None:
        raise UserError(
            f"{uri_of(version)} has no tag {DIGEST_TAG}: it was registered "
            "before there were digests, or somebody removed the tag; delete the version and run "
            "its recipe again"
        )
    proved = version.tags.get(f"{PROOF_TAG}.digest", digest)
    if proved != digest:
        raise UserError(
            f"{uri_of(version)} was verified with the digest {proved[:12]}… but its tag "
            f"{DIGEST_TAG} says {digest[:12]}…: somebody changed one of them; delete the version "
            "and run its recipe again"
        )
    return digest
