"""Versions in the registry: their addresses and tags, how one is found, and which there are.

A version's tags say what it is, what it proved, and what is owed to it. MLflow, which takes two
seconds, is imported where it is asked.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pipelines.errors import UserError
from pipelines.io.hugging_face import FROM_THE_HUB

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

    from pipelines.tracking.tracker import Tracker

Answer = TypeVar("Answer")

REGISTERED: Final = "models:/"
_PREFIX: Final = "bertsmith."
KIND_TAG: Final = "bertsmith.kind"
CODE_TAG: Final = "bertsmith.code_version"
DIGEST_TAG: Final = "bertsmith.digest"  # of the list of what the package's files hash to
VERIFIED_TAG: Final = "bertsmith.verified"
PROOF_TAG: Final = (
    "bertsmith.proof"  # .loaded, .metric, .logged, .reproduced, .data, .comparison, …
)
COMPARISON_TAG: Final = "bertsmith.comparison"  # .decision, .reason, .against, .interval, …
PROMOTED_TAG: Final = "bertsmith.promoted"  # .<alias>.reason, .<alias>.previous: who had it before

# What a run still has to do with the version. The tag is deleted once that is done, so that runs
# give every alias at most once, also where a run continues after a crash.
OWED_TAG: Final = "bertsmith.owed"
CANDIDATE: Final = "candidate alias"
PROMOTION: Final = "promotion"

OF_ENCODERS: Final = ("eval/mlm_accuracy", "eval/clm_accuracy")  # what encoders prove themselves by
ANY_TASK: Final = "any task"  # in place of a kind: every model but encoders
_CHAMPION: Final = "champion"  # recipes' default alias
# MLflow's error codes where there is no such model, version or alias.
_MISSING: Final = ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE", "NOT_FOUND")
_GONE_OR_CLOSED: Final = ("RESOURCE_DOES_NOT_EXIST", "PERMISSION_DENIED")  # others' things may be
_PAGE: Final = 100  # runs


def is_folder(reference: str) -> bool:
    """Whether a folder is meant: one that has a registered name is never what models:/ means."""
    return not reference.startswith(REGISTERED) and Path(reference).is_dir()


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


def rolled_back_tag(version: "ModelVersion", alias: str) -> str:
    """The tag of a registered name that keeps runs from giving `alias` to this model again."""
    fingerprint = version.tags.get(f"{_PREFIX}fingerprint", "")
    return f"bertsmith.rolled_back.{alias}.{fingerprint}"


def digest_of(version: "ModelVersion") -> str:
    """The digest under which a version's package was registered; UserError where it has none."""
    digest = version.tags.get(DIGEST_TAG)
    if digest is None:
        raise UserError(
            f"{uri_of(version)} has no tag {DIGEST_TAG}, so its files cannot be verified; delete "
            "the version and run its recipe again"
        )
    return digest


def find_model(client: "MlflowClient", reference: str) -> "ModelVersion":
    """The version that `name@alias`, `name/version` or a bare `name` names; `models:/` may lead.

    A bare name is its champion. Raises UserError where there is none, MlflowException where the
    tracker does not answer.
    """
    reference = reference.removeprefix(REGISTERED)
    name, separator, source = reference.partition("@" if "@" in reference else "/")
    if separator:
        return find_source(client, name, source)
    model = if_there(client.get_registered_model, name)
    if model is None:
        raise UserError(
            f"{name!r} is neither a folder nor a model in the registry ({_known_models(client)}); "
            f"see `bertsmith models`; {FROM_THE_HUB}"
        )
    if _CHAMPION not in model.aliases:
        numbers = sorted(int(version.version) for version in versions_of(client, name))
        raise UserError(
            f"{name} has no {_CHAMPION}: write {name}@alias or {name}/version; it has the aliases "
            f"{', '.join(sorted(model.aliases)) or 'none'} and the versions "
            f"{', '.join(map(str, numbers)) or 'none'}"
        )
    return find_source(client, name, _CHAMPION)


def find_source(client: "MlflowClient", name: str, source: str) -> "ModelVersion":
    """The version that an alias or a version number names.

    Raises UserError where there is none, MlflowException where the tracker does not answer.
    """
    ask = client.get_model_version if source.isdigit() else client.get_model_version_by_alias
    version = if_there(ask, name, source)
    if version is None:
        raise UserError(
            f"no model {name!r} with the alias or version {source!r} in the registry "
            f"({_known_models(client)}); see `bertsmith models`"
        )
    return version


def version_with_alias(client: "MlflowClient", name: str, alias: str) -> "ModelVersion | None":
    """The version with `alias`, or None; raises MlflowException where the tracker is away."""
    return if_there(client.get_model_version_by_alias, name, alias)


def if_there(
    ask: Callable[..., Answer], *names: str, missing: Collection[str] = _MISSING
) -> Answer | None:
    """What MLflow has under these names, or None."""
    from mlflow.exceptions import MlflowException

    try:
        return ask(*names)
    except MlflowException as error:
        if error.error_code not in missing:
            raise
        return None


def newest_of(client: "MlflowClient", kinds: Collection[str]) -> str | None:
    """The newest champion of these kinds; without one the newest verified version; else None.

    The server is asked once for each kind and once for each name that has such versions. Raises
    MlflowException where the tracker does not answer.
    """
    proved: list[ModelVersion] = []
    for kind in kinds:
        of_kind = "!= 'encoder'" if kind == ANY_TASK else f"= '{kind}'"
        verified = f"tags.`{KIND_TAG}` {of_kind} and tags.`{VERIFIED_TAG}` = 'true'"
        proved += pages(client.search_model_versions, verified)
    champions = {}
    for name in {version.name for version in proved}:
        model = if_there(client.get_registered_model, name, missing=_GONE_OR_CLOSED)
        if model is not None:
            champions[name] = int(model.aliases.get(_CHAMPION, 0))
    best = max(
        (version for version in proved if version.name in champions),
        key=lambda version: (
            int(version.version) == champions[version.name], version.creation_timestamp,
        ),
        default=None,
    )  # fmt: skip
    return None if best is None else reference_to(best)


def versions_of(client: "MlflowClient", name: str, more: str = "") -> "list[ModelVersion]":
    """Every version of `name`, of those that the filter `more` lets pass."""
    quote = '"' if "'" in name else "'"
    named = f"name = {quote}{name}{quote}{f' and {more}' if more else ''}"
    return list(pages(client.search_model_versions, named))


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedModel:
    """One version in the registry, as `bertsmith models` shows it."""

    name: str
    version: int
    aliases: tuple[str, ...]
    kind: str
    metric: str  # that it proved itself by; empty for an import, whose response is no score
    value: float | None
    is_verified: bool
    created: datetime
    fingerprint: str
    run_id: str
    comparison: str  # the result of its comparison; empty where it was not compared
    promoted: Mapping[str, str]  # why it was given each alias


def list_models(tracker: "Tracker", name: str = "") -> list[ListedModel]:
    """Every version in the registry, or of `name`, newest first within its name.

    Raises MlflowException where the tracker does not answer.
    """
    client = tracker.client()
    # Versions found by a search come without their aliases; the models have them all.
    aliases: dict[tuple[str, int], list[str]] = defaultdict(list)
    for model in pages(client.search_registered_models):
        for alias, number in model.aliases.items():
            aliases[model.name, int(number)].append(alias)
    versions = versions_of(client, name) if name else pages(client.search_model_versions)
    rows = [_listed(version, aliases[version.name, int(version.version)]) for version in versions]
    return sorted(rows, key=lambda row: (row.name, -row.version))


def _listed(version: "ModelVersion", aliases: list[str]) -> ListedModel:
    tags, proof = version.tags, entries(PROOF_TAG, version.tags)
    metric = proof.get("metric", "")
    is_score = metric.startswith("eval/")
    promoted = entries(PROMOTED_TAG, tags)
    return ListedModel(
        name=version.name,
        version=int(version.version),
        aliases=tuple(sorted(aliases)),
        kind=tags.get(KIND_TAG, ""),
        metric=metric if is_score else "",
        value=float(proof["reproduced"]) if is_score else None,
        is_verified=tags.get(VERIFIED_TAG) == "true",
        created=datetime.fromtimestamp(version.creation_timestamp / 1000, UTC),
        fingerprint=tags.get(f"{_PREFIX}fingerprint", ""),
        run_id=version.run_id or "",
        comparison=tags.get(f"{COMPARISON_TAG}.reason", ""),
        promoted={
            alias: promoted[f"{alias}.reason"] for alias in sorted(aliases)
            if f"{alias}.reason" in promoted
        },
    )  # fmt: skip


def fingerprints_in_use(
    tracker: "Tracker", *, since: datetime | None = None
) -> dict[str, tuple[str, ...]]:
    """Who uses each fingerprint: `name/version` of models, and runs since `since` or running.

    Raises UserError where the tracker does not answer.
    """
    from pipelines.store.artifact import is_fingerprint

    users: dict[str, set[str]] = defaultdict(set)
    with tracker.answering("to say which artifacts are in use"):
        for name, tags in _tagged(tracker, since):
            for key, value in tags.items():
                if key.startswith(_PREFIX) and is_fingerprint(value):
                    users[value].add(name)
    return {fingerprint: tuple(sorted(names)) for fingerprint, names in users.items()}


def _tagged(tracker: "Tracker", since: datetime | None) -> Iterator[tuple[str, Mapping[str, str]]]:
    client = tracker.client()
    for version in pages(client.search_model_versions):
        yield reference_to(version), version.tags
    if since is None:
        return
    ids = [experiment.experiment_id for experiment in pages(client.search_experiments)]
    recent = f"attributes.start_time >= {int(since.timestamp() * 1000)}"
    for runs in (recent, "attributes.status = 'RUNNING'"):
        for run in pages(client.search_runs, ids, runs, max_results=_PAGE):
            yield f"run {run.info.run_name}", run.data.tags
