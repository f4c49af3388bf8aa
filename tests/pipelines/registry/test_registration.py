"""A version in the registry: made once, mended where it broke off, its figures named truly."""

import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from mlflow.exceptions import MlflowException

from pipelines.artifacts import ArtifactStore
from pipelines.registry import packaging, registration
from pipelines.registry.listing import list_models
from pipelines.registry.opening import located
from pipelines.registry.packaging import logged_package, save_model_package
from pipelines.tracking.tracker import ATTEMPT_TAG
from tests.pipelines.registry.conftest import Models


def test_the_curve_ends_where_the_training_ended(models: Models) -> None:
    artifact = models.trained(1)
    models.register(artifact)
    client = models.tracker.client()
    run_id = models.tracker.find_run(artifact.fingerprint)
    assert run_id is not None
    steps = [point.step for point in client.get_metric_history(run_id, "eval/mlm_loss")]
    assert steps == [10, 30]
    finals = client.get_metric_history(run_id, "final/eval/mlm_loss")
    assert [point.value for point in finals] == [artifact.statistics["eval/mlm_loss"]]
    (logged,) = client.search_logged_models([models.tracker.experiment_id()])
    names = {metric.key for metric in logged.metrics or ()}
    assert names == {f"final/{name}" for name in artifact.statistics}
    (row,) = list_models(models.tracker)
    assert row.value == artifact.statistics["eval/mlm_accuracy"]


def test_a_new_version_is_the_candidate_and_says_where_its_figures_come_from(
    models: Models,
) -> None:
    model = models.register(models.trained(1))
    assert (model.version, model.reused, model.is_verified) == (1, False, False)
    version = models.tracker.client().get_model_version_by_alias("encoder", "candidate")
    assert int(version.version) == 1
    assert version.tags["bertsmith.computed_on.device"] == "cpu"
    assert "torch==" in version.tags["bertsmith.requirements"]
    assert "bertsmith.owed" not in models.tracker.client().get_model_version("encoder", "1").tags


def test_of_a_model_trained_with_another_tracker_the_machine_is_not_known(models: Models) -> None:
    model = models.register(models.encoder(1))
    tags = models.tracker.client().get_model_version("encoder", str(model.version)).tags
    assert not [key for key in tags if key.startswith("bertsmith.computed_on")]


def test_a_version_has_the_run_of_the_attempt_that_was_published(
    models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BERTSMITH_CACHE", str(tmp_path / "cache"))
    store = ArtifactStore(f"memory://{tmp_path.name}/store")
    models.context = replace(models.context, store=store)
    artifact, runs = models.encoder(1), []
    for attempt in (artifact.manifest.attempt, "of-another-builder"):
        run_id = models.tracker.create_run(
            "pretraining", artifact.fingerprint, {}, {ATTEMPT_TAG: attempt}
        )
        models.tracker.finish(run_id, artifact.statistics)
        runs.append(run_id)
    assert models.register(artifact).run_id == runs[0]


@pytest.mark.parametrize(
    "table", ["logged_model_metrics", "registered_models", "model_versions",
              "registered_model_aliases"],
)  # fmt: skip
def test_a_registration_that_broke_off_is_mended_without_doubles(
    models: Models, table: str, tmp_path: Path
) -> None:
    """The database refuses one kind of row for once: the steps before it are done, no others."""
    artifact = models.trained(1)
    with refused(tmp_path / "mlflow.db", table), pytest.raises(MlflowException):
        models.register(artifact)
    assert_registered_once(models)


def test_an_upload_that_broke_off_is_mended(models: Models, tmp_path: Path) -> None:
    artifact = models.trained(1)
    files = tmp_path / "files"
    models.tracker.experiment_id()
    (files / "models").parent.mkdir(exist_ok=True)
    (files / "models").write_text("a file where a folder must be")
    with pytest.raises((MlflowException, OSError)):
        models.register(artifact)
    (files / "models").unlink()
    assert_registered_once(models)


def assert_registered_once(models: Models) -> None:
    artifact = models.encoder(1)
    model = models.register(artifact)
    client = models.tracker.client()
    assert model.version == 1
    assert len(client.search_model_versions("name = 'encoder'")) == 1
    assert int(client.get_model_version_by_alias("encoder", "candidate").version) == 1
    (logged,) = client.search_logged_models([models.tracker.experiment_id()])
    assert str(logged.status) == "READY"
    run_id = models.tracker.find_run(artifact.fingerprint)
    assert run_id is not None
    assert len(client.get_metric_history(run_id, "final/eval/mlm_loss")) == 1
    assert len(logged.metrics or ()) == len(artifact.statistics)
    with located(models.tracker, "encoder@candidate") as folder:
        assert folder.is_dir()


@contextmanager
def refused(database: Path, table: str) -> Iterator[None]:
    """While it lasts, the database takes no row into `table`."""
    with closing(sqlite3.connect(database)) as connection:
        connection.execute(
            f"CREATE TRIGGER away BEFORE INSERT ON {table} "
            "BEGIN SELECT RAISE(ABORT, 'the disk is away'); END"
        )
        connection.commit()
        yield
        connection.execute("DROP TRIGGER away")
        connection.commit()


# Both take the same tag away; MLflow's server says of the second that it was gone.
@pytest.mark.filterwarnings("ignore:DELETE statement on table 'model_version_tags'")
def test_a_run_that_registers_second_removes_its_version_and_its_package(
    models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both packages are whole before either run makes a version of its own."""
    artifact, together = models.trained(1), Barrier(2, timeout=60)

    def begun_at_once(*arguments: Any, **settings: Any) -> str:
        together.wait()
        return save_model_package(*arguments, **settings)

    def whole_at_once(*arguments: Any) -> Any:
        package = logged_package(*arguments)
        together.wait()
        return package

    models.tracker.experiment_id()
    monkeypatch.setattr(packaging, "save_model_package", begun_at_once)
    monkeypatch.setattr(registration, "logged_package", whole_at_once)
    with ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(models.register, artifact) for _ in range(2)]
    assert [run.result().version for run in runs] == [1, 1]
    assert_registered_once(models)
    assert "dbutils" not in sys.modules  # MLflow's stand-in, for as long as a package is saved


_REGISTERS = """
import sys, time
from pathlib import Path
from pipelines.artifacts import ArtifactStore
from pipelines.tracking.tracker import Tracker
from pipelines.registry.registration import Submission, register

store, kind, fingerprint, uri, files, waiting, go = sys.argv[1:]
artifact = ArtifactStore(store).find(kind, fingerprint)
tracker = Tracker(uri=uri, experiment="tests", artifact_location=files)
submission = Submission(kind="encoder", name="encoder", alias="candidate", artifact=artifact,
                        lineage={}, recipe_yaml="name: small")
tracker.experiment_id()
Path(waiting).touch()
while not Path(go).exists():
    time.sleep(0.01)
model = register(submission, tracker)
print(model.version)
"""


@pytest.mark.slow  # two processes import MLflow and torch
def test_runs_that_register_one_artifact_at_once_make_one_version(
    models: Models, tmp_path: Path
) -> None:
    """They share the MLflow server and nothing else, as on two machines."""
    artifact = models.trained(1)
    go, begun = tmp_path / "go", [tmp_path / f"waiting-{number}" for number in range(2)]
    arguments = [models.context.store.url, artifact.kind, artifact.fingerprint,
                 models.tracker.uri, models.tracker.artifact_location]  # fmt: skip
    running = [
        subprocess.Popen(
            [sys.executable, "-c", _REGISTERS, *map(str, arguments), str(waiting), str(go)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for waiting in begun
    ]  # fmt: skip
    try:
        while not all(waiting.exists() for waiting in begun):
            assert all(process.poll() is None for process in running)
            time.sleep(0.01)
        go.touch()
        said = [process.communicate(timeout=240) for process in running]
    finally:
        for process in running:
            process.kill()
    assert [out.strip() for out, _ in said] == ["1", "1"], said
    assert_registered_once(models)
