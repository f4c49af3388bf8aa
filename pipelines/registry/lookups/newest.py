"""The model that a command asks where nobody names one: the newest champion of a kind."""

from collections.abc import Collection, Iterator

from mlflow import MlflowClient
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException

from pipelines.core.tracking.paging import pages
from pipelines.registry.lookups.finding import GONE_OR_CLOSED
from pipelines.registry.tags import KIND_TAG, OF_ENCODERS, PROOF_TAG, VERIFIED_TAG

_CHAMPION = "champion"
_WITHOUT_A_CHOICE = {"candidate", "challenger"}  # aliases that nobody chose a version by


def newest_of(client: MlflowClient, kinds: Collection[str], fills_gaps: bool) -> str | None:
    """The newest champion of these kinds; without one the newest that has another alias of choice,
    else the newest proved version.

    With `fills_gaps` one that learned to predict tokens goes before others. None where no version
    proved itself. The server looks for them: it is asked once for each kind and once for each name
    that has such versions, however many versions it holds. Raises MlflowException where the tracker
    does not answer.
    """
    found = [version for kind in kinds for version in _proved(client, kind)]
    aliases = {name: _aliases(client, name) for name in {version.name for version in found}}

    def rank(version: ModelVersion) -> tuple[bool, bool, bool, int]:
        own = {
            alias
            for alias, number in (aliases[version.name] or {}).items()
            if int(number) == int(version.version)
        }
        return (
            fills_gaps and version.tags.get(f"{PROOF_TAG}.metric") in OF_ENCODERS,
            _CHAMPION in own,
            bool(own - _WITHOUT_A_CHOICE),
            version.creation_timestamp,
        )

    ours = [version for version in found if aliases[version.name] is not None]
    best = max(ours, key=rank, default=None)
    return None if best is None else f"{best.name}/{best.version}"


def _proved(client: MlflowClient, kind: str) -> Iterator[ModelVersion]:
    wanted = f"tags.`{KIND_TAG}` = '{kind}' and tags.`{VERIFIED_TAG}` = 'true'"
    return pages(lambda token: client.search_model_versions(wanted, page_token=token))


def _aliases(client: MlflowClient, name: str) -> dict[str, str] | None:
    """Versions by their alias; None for a name that is another team's, or gone."""
    try:
        return dict(client.get_registered_model(name).aliases)
    except MlflowException as error:
        if error.error_code not in GONE_OR_CLOSED:
            raise
        return None
