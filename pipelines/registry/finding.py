"""Versions in the registry: their addresses and tags, and how one is found.

A version is found by name and alias or number, or as the newest of a kind. Its tags say what it is,
what it proved, and what is owed to it. MLflow, which takes two seconds, is imported where it is
asked.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pipelines.config.errors import UserError
from pipelines.io.hugging_face import FROM_THE_HUB

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

Found = TypeVar("Found")

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

# What a run still has to do with the version. The tag is deleted once that is done, so that runs
# give every alias at most once, also where a run continues after a crash.
OWED_TAG = "bertsmith.owed"
CANDIDATE = "candidate alias"
PROMOTION = "promotion"

# The default aliases of recipes.
_CHAMPION, _CANDIDATE, _CHALLENGER = "champion", "candidate", "challenger"
# MLflow's error codes where there is no such model, version or alias.
_MISSING = ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE", "NOT_FOUND")
GONE_OR_CLOSED: Final = ("RESOURCE_DOES_NOT_EXIST", "PERMISSION_DENIED")  # others' things may be


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


def reference_to(version: "ModelVersion") -> str:
    """`name/number`, which no alias can move."""
    return f"{version.name}/{version.version}"


def uri_of(version: "ModelVersion") -> str:
    """models:/name/number."""
    return f"{REGISTERED}{reference_to(version)}"


def digest_of(version: "ModelVersion") -> str:
    """The digest under which a version's package was registered.

    Raises UserError where it has none, and where its proof was made of another one.
    """
    digest = version.tags.get(DIGEST_TAG)
    if digest is None:
        raise UserError(
            f"{uri_of(version)} has no tag {DIGEST_TAG}: it was registered before there were "
            "digests, or the tag was removed; delete the version and run its recipe again"
        )
    proved = version.tags.get(f"{PROOF_TAG}.digest", digest)
    if proved != digest:
        raise UserError(
            f"{uri_of(version)} was verified with the digest {proved[:12]}… but its tag "
            f"{DIGEST_TAG} says {digest[:12]}…: one of them was changed; delete the version and "
            "run its recipe again"
        )
    return digest


def find_model(client: "MlflowClient", reference: str) -> "ModelVersion":
    """The version that `name@alias`, `name/version` or a bare `name` names; `models:/` may lead.

    A bare name is its champion, else the one other alias that it has besides the candidate's and
    the challenger's, else its candidate, if that proved itself. Raises UserError where there is
    none, MlflowException where the tracker does not answer.
    """
    reference = reference.removeprefix(REGISTERED)
    name, separator, source = reference.partition("@" if "@" in reference else "/")
    if separator:
        return find_source(client, name, source)
    usual = _usual_source(client, name)
    version = find_source(client, name, usual)
    if usual == _CANDIDATE and version.tags.get(VERIFIED_TAG) != "true":
        raise UserError(
            f"{name} has no champion, and its candidate, version {version.version}, has not "
            "repeated its logged accuracy; run its recipe again to verify it, or write "
            f"{name}/{version.version}"
        )
    return version


def find_source(client: "MlflowClient", name: str, source: str) -> "ModelVersion":
    """The version that an alias or a version number names.

    Raises UserError where there is none, MlflowException where the tracker does not answer.
    """
    ask = client.get_model_version if source.isdigit() else client.get_model_version_by_alias
    found = if_there(ask, name, source)
    if found is None:
        raise UserError(
            f"no model {name!r} with the alias or version {source!r} in the registry "
            f"({_known_models(client)}); see `bertsmith models`"
        )
    return found


def version_with_alias(client: "MlflowClient", name: str, alias: str) -> "ModelVersion | None":
    """The version with `alias`, or None; raises MlflowException where the tracker is away."""
    return if_there(client.get_model_version_by_alias, name, alias)


def if_there(
    ask: Callable[..., Found], *names: str, missing: Collection[str] = _MISSING
) -> Found | None:
    """What MLflow has under these names, or None."""
    from mlflow.exceptions import MlflowException

    try:
        return ask(*names)
    except MlflowException as error:
        if error.error_code not in missing:
            raise
        return None


def _usual_source(client: "MlflowClient", name: str) -> str:
    """The alias that a bare name means; UserError where that would be a guess."""
    model = if_there(client.get_registered_model, name)
    if model is None:
        raise UserError(
            f"{name!r} is neither a folder nor a model in the registry ({_known_models(client)}); "
            f"see `bertsmith models`; {FROM_THE_HUB}"
        )
    aliases = model.aliases
    if _CHAMPION in aliases:
        return _CHAMPION
    others = sorted(set(aliases) - {_CANDIDATE, _CHALLENGER})
    if len(others) == 1:
        return others[0]
    if not others and _CANDIDATE in aliases:
        return _CANDIDATE
    numbers = sorted(int(version.version) for version in versions_of(client, name))
    raise UserError(
        f"{name} has no {_CHAMPION}: write {name}@alias or {name}/version; it has the aliases "
        f"{', '.join(sorted(aliases)) or 'none'} and the versions "
        f"{', '.join(map(str, numbers)) or 'none'}"
    )


def newest_of(client: "MlflowClient", kinds: Collection[str], fills_gaps: bool) -> str | None:
    """The newest champion of these kinds; without one the newest that has another alias of choice,
    else the newest proved version.

    With `fills_gaps` one that learned to predict tokens comes first. None where no version proved
    itself. The server is asked once for each kind and once for each name that has such versions,
    however many versions it holds. Raises MlflowException where the tracker does not answer.
    """
    found = [version for kind in kinds for version in _proved(client, kind)]
    aliases = {name: _aliases(client, name) for name in {version.name for version in found}}

    def rank(version: "ModelVersion") -> tuple[bool, bool, bool, int]:
        own = {
            alias
            for alias, number in (aliases[version.name] or {}).items()
            if int(number) == int(version.version)
        }
        return (
            fills_gaps and version.tags.get(f"{PROOF_TAG}.metric") in OF_ENCODERS,
            _CHAMPION in own,
            bool(own - {_CANDIDATE, _CHALLENGER}),
            version.creation_timestamp,
        )

    ours = [version for version in found if aliases[version.name] is not None]
    best = max(ours, key=rank, default=None)
    return None if best is None else reference_to(best)


def _proved(client: "MlflowClient", kind: str) -> "Iterator[ModelVersion]":
    of_kind = "!= 'encoder'" if kind == ANY_TASK else f"= '{kind}'"
    wanted = f"tags.`{KIND_TAG}` {of_kind} and tags.`{VERIFIED_TAG}` = 'true'"
    return pages(client.search_model_versions, wanted)


def _aliases(client: "MlflowClient", name: str) -> dict[str, str] | None:
    """Versions by their alias; None for a name that is another team's, or gone."""
    model = if_there(client.get_registered_model, name, missing=GONE_OR_CLOSED)
    return None if model is None else dict(model.aliases)


def versions_of(client: "MlflowClient", name: str, more: str = "") -> "list[ModelVersion]":
    """Every version of `name`, of those that the filter `more` lets pass."""
    quote = '"' if "'" in name else "'"
    wanted = f"name = {quote}{name}{quote}{f' and {more}' if more else ''}"
    return list(pages(client.search_model_versions, wanted))


def _known_models(client: "MlflowClient") -> str:
    known = [model.name for model in pages(client.search_registered_models)]
    return f"known models: {', '.join(known)}" if known else "the registry is empty"


def pages(search: Callable[..., Any], *args: Any, **options: Any) -> Iterator[Any]:
    """What a search of MLflow's client finds, on all of its pages."""
    token = None
    while True:
        page = search(*args, page_token=token, **options)
        yield from page
        token = page.token
        if not token:
            return
