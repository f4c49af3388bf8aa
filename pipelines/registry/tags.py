"""Tags of a version in the registry: what it is, what it proved, what is owed to it."""

from collections.abc import Mapping

KIND_TAG = "bertsmith.kind"
CODE_TAG = "bertsmith.code_version"
REQUIREMENTS_TAG = "bertsmith.requirements"  # the libraries that its package declares
VERIFIED_TAG = "bertsmith.verified"
PROOF_TAG = "bertsmith.proof"  # .loaded, .metric, .logged, .reproduced, .data, .comparison, …

# What a run still owes the version. It is taken away once it is done, so that every alias is
# given by a run at most once, by the one that made it due or the one that goes on after a crash.
OWED_TAG = "bertsmith.owed"
CANDIDATE = "candidate alias"
PROMOTION = "promotion"


def entries(prefix: str, tags: Mapping[str, str]) -> dict[str, str]:
    """The values of all tags below `prefix`, by the rest of their names."""
    return {
        key.removeprefix(f"{prefix}."): value
        for key, value in tags.items()
        if key.startswith(f"{prefix}.")
    }
