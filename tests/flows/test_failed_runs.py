"""Runs that fail, are stopped, or lose their tracker at the end: what their pages still show."""

import http.server
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import (
    ArtifactFilter,
    ArtifactFilterFlowRunId,
    FlowRunFilter,
    LogFilter,
    LogFilterFlowRunId,
    TaskRunFilter,
    TaskRunFilterFlowRunId,
)
from prefect.runtime import flow_run
from prefect.states import Running

from flows.chain import build_chain
from flows.environment import LocalApi
from flows.local.served import end_lost_runs
from flows.report import RunReport
from flows.run import started_run
from pipelines.errors import UserError
from pipelines.io.files import open_binary
from pipelines.recipes.files import read_recipe
from pipelines.recipes.recipe import Recipe
from pipelines.stage import StageContext, open_tracker
from pipelines.store import Artifact

SECRET = "hidden-word"


@pytest.fixture
def recipe(small_recipe: Path, tmp_path: Path) -> Recipe:
    return read_recipe(str(small_recipe), [f"runtime.home={tmp_path / 'home'}"])


def breaking() -> None:
    raise UserError(f"the texts must be there, found none at http://ann:{SECRET}@host/x")


def stopping() -> None:
    raise KeyboardInterrupt


def run_then(recipe: Recipe, second: Callable[[], None], runs: list[str]) -> None:
    """A flow run of two stages, the corpus and `second`; its id is put into `runs`."""

    @flow(name="breaks-off", persist_result=False)
    def breaks_off(recipe: Recipe) -> None:
        runs.append(str(flow_run.id))
        with started_run("breaks-off", recipe) as run:
            build_chain(run, "corpus")
            run.stage("second", second)

    breaks_off(recipe)


def report_of(run_id: str) -> str:
    of_run = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[run_id]))
    with get_client(sync_client=True) as client:
        found = {left.key: left for left in client.read_artifacts(artifact_filter=of_run)}
    assert isinstance(found["breaks-off-report"].data, str)
    return found["breaks-off-report"].data


def everything_written(run_id: str) -> str:
    """Parameters, states, logs, task runs and artifacts of a flow run, as Prefect keeps them."""
    with get_client(sync_client=True) as client:
        parts: list[Any] = [
            *client.read_logs(LogFilter(flow_run_id=LogFilterFlowRunId(any_=[run_id]))),
            *client.read_flow_runs(flow_run_filter=FlowRunFilter(id={"any_": [run_id]})),
            *client.read_flow_run_states(run_id),
            *client.read_task_runs(
                task_run_filter=TaskRunFilter(flow_run_id=TaskRunFilterFlowRunId(any_=[run_id]))
            ),
            *client.read_artifacts(
                artifact_filter=ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[run_id]))
            ),
        ]
    return "\n".join(part.model_dump_json() for part in parts)


@pytest.mark.parametrize(
    ("second", "error", "sentence"),
    [
        (breaking, UserError, "failed in stage second: the texts must be there, found none at "
                              "http://host/x"),
        (stopping, KeyboardInterrupt, "stopped in stage second"),
    ],
)  # fmt: skip
def test_a_run_that_fails_or_is_stopped_publishes_what_it_has(
    second: Callable[[], None], error: type[BaseException], sentence: str,
    prefect_api: str, local_ray: None, recipe: Recipe,
) -> None:  # fmt: skip
    runs: list[str] = []
    with pytest.raises(error):
        run_then(recipe, second, runs)
    report = report_of(runs[0])
    assert sentence in report
    assert "| corpus | built " in report


def fine() -> None:
    return None


def finished(recipe: Recipe, name: str) -> tuple[RunReport, str]:
    """The report of a flow run of one stage that does nothing, and the run's id."""
    runs: list[str] = []

    @flow(name="finishes", persist_result=False)
    def finishes(recipe: Recipe) -> RunReport:
        runs.append(str(flow_run.id))
        with started_run(name, recipe) as run:
            run.stage("only", fine)
        return run.report

    return finishes(recipe), runs[0]


def test_a_report_that_cannot_be_published_leaves_a_finished_run_completed(
    prefect_api: str, recipe: Recipe
) -> None:
    report, run_id = finished(recipe, "NoKeyOfAnArtifact")  # Prefect takes none with capitals
    assert not report.failure
    assert "the report is missing on the run's page" in report.notes[-1]
    with get_client(sync_client=True) as client:
        assert client.read_flow_run(run_id).state.is_completed()


def test_nothing_points_at_an_api_that_ends_with_its_run(
    prefect_api: str, recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_API_URL", prefect_api)
    monkeypatch.setattr(LocalApi, "url_of_this_process", prefect_api)
    assert finished(recipe, "shown-nowhere")[0].flow_run_url == ""
    tracker = open_tracker(recipe.runtime)
    (kept,) = tracker.client().search_runs([tracker.experiment_id()])
    assert "http" not in kept.data.tags["mlflow.note.content"]


def test_files_that_the_tracker_cannot_keep_cost_the_record_alone(
    prefect_api: str, recipe: Recipe
) -> None:
    home = recipe.runtime.home_folder()
    home.mkdir()
    (home / "mlartifacts").write_text("a file where MLflow's folder must be")
    _, run_id = finished(recipe, "without-files")
    tracker = open_tracker(recipe.runtime)
    (kept,) = tracker.client().search_runs([tracker.experiment_id()])
    assert kept.info.status == "FINISHED"
    assert kept.data.tags["bertsmith.flow_run"] == run_id


@pytest.fixture
def tracker_that_goes_away() -> Iterator[str]:
    """A server that takes connections and answers none of MLflow's questions."""

    class Away(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(503)

        do_POST = do_GET  # noqa: N815

        def log_message(self, *arguments: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Away) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_a_tracker_that_is_away_costs_the_record_alone_and_passwords_are_kept_nowhere(
    prefect_api: str,
    local_ray: None,
    recipe: Recipe,
    tracker_that_goes_away: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    for name in ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"):
        monkeypatch.setenv(name, "")
    uri = f"http://ann:{SECRET}@{tracker_that_goes_away}"
    place = recipe.runtime.model_copy(update={"tracking_uri": uri})
    runs: list[str] = []
    run_then(recipe.model_copy(update={"runtime": place}), fine, runs)
    assert SECRET not in str(os.environ)
    written = everything_written(runs[0])
    assert "| corpus " in written
    assert SECRET not in written
    assert SECRET not in "".join(capfd.readouterr())


def test_a_source_with_a_signature_that_cannot_be_read_leaves_no_signature(
    prefect_api: str, local_ray: None, recipe: Recipe, tracker_that_goes_away: str
) -> None:
    url = f"http://{tracker_that_goes_away}/a.txt?X-Amz-Signature={SECRET}"
    runs: list[str] = []

    def read(context: StageContext) -> Artifact:
        with open_binary(url) as stream:
            raise AssertionError(stream.read())

    @flow(name="signed", persist_result=False)
    def signed(recipe: Recipe) -> None:
        runs.append(str(flow_run.id))
        with started_run("signed", recipe) as run:
            run.stage("corpus", read, run.context)

    with pytest.raises(Exception) as raised:
        signed(recipe)
    assert SECRET not in str(raised.value)
    written = everything_written(runs[0])
    assert "failed in stage corpus" in written
    assert SECRET not in written


def test_a_served_run_whose_process_was_lost_is_crashed_by_the_next_one(prefect_api: str) -> None:
    """One that a person runs in a shell is left alone."""

    @flow
    def served() -> None: ...

    with get_client(sync_client=True) as client:
        flow_id = client.create_flow(served)
        deployment = client.read_deployment(client.create_deployment(flow_id, "lost"))
        lost = client.create_flow_run_from_deployment(deployment.id, state=Running())
        of_a_shell = client.create_flow_run(served, state=Running())
        end_lost_runs(client)
        states = [client.read_flow_run(run.id).state_type for run in (lost, of_a_shell)]
        client.delete_flow_run(of_a_shell.id)
        client.delete_deployment(deployment.id)
    assert states == ["CRASHED", "RUNNING"]
