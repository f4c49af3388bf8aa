"""Which artifacts registered models and runs stand on, by the tags that they carry."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import datetime

from mlflow.exceptions import MlflowException

from pipelines.artifacts.layout import is_fingerprint
from pipelines.core.errors import UserError, first_line
from pipelines.core.tracking.paging import pages
from pipelines.core.tracking.tracker import Tracker

_PREFIX = "bertsmith."
_PAGE = 100


def fingerprints_in_use(
    tracker: Tracker, *, since: datetime | None = None
) -> dict[str, tuple[str, ...]]:
    """Who stands on each fingerprint: `name/version` of models, and runs that began after `since`.

    Raises UserError where the tracker does not answer: what it would have said is then unknown.
    """
    users: dict[str, set[str]] = defaultdict(set)
    try:
        for name, tags in _tagged(tracker, since):
            for key, value in tags.items():
                if key.startswith(_PREFIX) and is_fingerprint(value):
                    users[value].add(name)
    except MlflowException as error:
        raise UserError(
            f"the MLflow tracker must answer at {tracker.uri} to say which artifacts are in use, "
            f"but it said: {first_line(error)}; start it or choose another tracking_uri"
        ) from error
    return {fingerprint: tuple(sorted(names)) for fingerprint, names in users.items()}


def _tagged(tracker: Tracker, since: datetime | None) -> Iterator[tuple[str, Mapping[str, str]]]:
    client = tracker.client()
    for version in pages(lambda token: client.search_model_versions(page_token=token)):
        yield f"{version.name}/{version.version}", version.tags
    if since is None:
        return
    experiments = pages(lambda token: client.search_experiments(page_token=token))
    ids = [experiment.experiment_id for experiment in experiments]
    began = f"attributes.start_time >= {int(since.timestamp() * 1000)}"
    for run in pages(
        lambda token: client.search_runs(ids, began, max_results=_PAGE, page_token=token)
    ):
        yield f"run {run.info.run_name}", run.data.tags
