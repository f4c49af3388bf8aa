"""Versions in the registry: their addresses and tags, how one is found, and which there are.

MLflow takes two seconds to import, so it is imported where it is asked.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pipelines.errors import UserError, nearest
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
PROOF_TAG: Final = "bertsmith.proof"  # .metric, .logged, .reproduced, .data, .comparison, …
COMPARISON_TAG: Final = "bertsmith.comparison"  # .decision, .reason
PROMOTED_TAG: Final = "bertsmith.promoted"  # .<alias>.reason, .<alias>.previous: who had it before

ANY_TASK: Final = "any task"  # in place of a kind: every model but encoders
_CHAMPION: Final = "champion"  # recipes' default alias
# MLflow's error codes where there is no such model, version or alias.
_MISSING: Final = ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE", "NOT_FOUND")
_PAGE: Final = 100  # runs


def is_folder(reference: str) -> bool:
    """Whether a folder is meant: one that has a registered name is never what models:/ means."""
    return not reference.startswith(REGISTERED) and Path(reference).is_dir()


def entries(prefix: str, tags: Mapping[str, str]) -> dict[str, str]:
    """The values of all tags below `prefix`, by the rest of their names."""
    start = f"{prefix}."
    return {key.removeprefix(start): tags[key] for key in tags if key.startswith(start)}


def reference_to(version: "ModelVersion") -> str:
    """`name/number`, which no alias can move."""
    return f"{version.name}/{version.version}"


def number_of(version: "ModelVersion | None") -> int | None:
    """The version's number; None where there is no version."""
    return None if version is None else int(version.version)


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
    champion = version_with_alias(client, name, _CHAMPION)
    if champion is None and if_there(client.get_registered_model, name) is not None:
        raise UserError(
            f"{name} has no champion; name a version that `bertsmith models` lists, such as "
            f"{name}/1, or decide with `bertsmith promote {name} --version 1`"
        )
    return champion or find_source(client, name, _CHAMPION)


def find_source(client: "MlflowClient", name: str, source: str) -> "ModelVersion":
    """The version that an alias or a version number names; raises as `find_model` does."""
    ask = client.get_model_version if source.isdigit() else client.get_model_version_by_alias
    version = if_there(ask, name, source)
    if version is None and if_there(client.get_registered_model, name) is not None:
        raise UserError(
            f"no version of {name} has the alias or number {source!r}; name one that "
            f"`bertsmith models` lists, such as {name}/1"
        )
    if version is None:
        names = [model.name for model in pages(client.search_registered_models)]
        raise UserError(
            f"the registry has no model {name!r} with the alias or version {source!r}, and there "
            f"is no such folder{nearest(name, names)}; see `bertsmith models`; {FROM_THE_HUB}"
        )
    return version


def version_with_alias(client: "MlflowClient", name: str, alias: str) -> "ModelVersion | None":
    """The version with `alias`, or None; raises MlflowException where the tracker is away."""
    return if_there(client.get_model_version_by_alias, name, alias)


def if_there(ask: Callable[..., Answer], *names: str) -> Answer | None:
    """What MLflow has under these names, or None."""
    from mlflow.exceptions import MlflowException

    try:
        return ask(*names)
    except MlflowException as error:
        if error.error_code not in _MISSING:
            raise
        return None


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
    aliases: list[str]
    kind: str
    metric: str  # that it proved itself by; empty for an import, whose response is no score
    value: float | None
    is_verified: bool
    created: datetime
    fingerprint: str
    comparison: str  # the result of its comparison; empty where it was not compared
    promoted: Mapping[str, str]  # why it was given each alias


def list_models(tracker: "Tracker", name: str | None = None) -> list[ListedModel]:
    """Every version in the registry, or of one name in it; newest first within its name.

    Raises MlflowException where the tracker does not answer.
    """
    client = tracker.client()
    of_name = None if name is None else f"name = '{name}'"
    # Versions found by a search come without their aliases; the models have them all.
    aliases: dict[tuple[str, int], list[str]] = defaultdict(list)
    for model in pages(client.search_registered_models, of_name):
        for alias, number in sorted(model.aliases.items()):
            aliases[model.name, int(number)].append(alias)
    rows = [
        listed(version, aliases[version.name, int(version.version)])
        for version in pages(client.search_model_versions, of_name)
    ]
    return sorted(rows, key=lambda row: (row.name, -row.version))


def listed(version: "ModelVersion", aliases: Iterable[str]) -> ListedModel:
    """One version and the aliases that it has."""
    tags = version.tags
    proof, reasons = entries(PROOF_TAG, tags), entries(PROMOTED_TAG, tags)
    is_score = proof.get("metric", "").startswith("eval/") and "reproduced" in proof
    held = sorted(aliases)
    return ListedModel(
        name=version.name,
        version=int(version.version),
        aliases=held,
        kind=tags.get(KIND_TAG, ""),
        metric=proof["metric"] if is_score else "",
        value=float(proof["reproduced"]) if is_score else None,
        is_verified=tags.get(VERIFIED_TAG) == "true",
        created=datetime.fromtimestamp(version.creation_timestamp / 1000, UTC),
        fingerprint=tags.get(f"{_PREFIX}fingerprint", ""),
        comparison=tags.get(f"{COMPARISON_TAG}.reason", ""),
        promoted={a: reasons[f"{a}.reason"] for a in held if f"{a}.reason" in reasons},
    )


def newest_of(tracker: "Tracker", kind: str) -> str | None:
    """models:/name/version of the newest champion of this kind, or else verified version, or None.

    Raises MlflowException where the tracker does not answer.
    """
    proved = (
        row
        for row in list_models(tracker)
        if row.is_verified
        and (row.kind == kind or (kind == ANY_TASK and row.kind not in ("", "encoder")))
    )
    best = max(proved, key=lambda row: (_CHAMPION in row.aliases, row.created), default=None)
    return None if best is None else f"{REGISTERED}{best.name}/{best.version}"


def fingerprints_in_use(
    tracker: "Tracker", *, since: datetime | None = None
) -> dict[str, tuple[str, ...]]:
    """Who uses each fingerprint: `name/version` of models, and runs since `since` or running.

    Raises UserError where the tracker does not answer.
    """
    from pipelines.store.artifact import is_fingerprint

    users: dict[str, set[str]] = defaultdict(set)
    with tracker.answering():
        client = tracker.client()
        tagged = [(reference_to(each), each.tags) for each in pages(client.search_model_versions)]
        if since is not None:
            ids = [experiment.experiment_id for experiment in pages(client.search_experiments)]
            recent = f"attributes.start_time >= {int(since.timestamp() * 1000)}"
            for runs in (recent, "attributes.status = 'RUNNING'"):
                tagged += (
                    (f"run {run.info.run_name}", run.data.tags)
                    for run in pages(client.search_runs, ids, runs, max_results=_PAGE)
                )
    for name, tags in tagged:
        for key, value in tags.items():
            if key.startswith(_PREFIX) and is_fingerprint(value):
                users[value].add(name)
    return {fingerprint: tuple(sorted(names)) for fingerprint, names in users.items()}
