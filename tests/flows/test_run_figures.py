"""Figures for Prometheus: what a run tells, what is served of several, and to whom."""

import os
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Metric, generate_latest, write_to_textfile
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.parser import text_string_to_metric_families

from flows.observability import run_figures
from flows.observability.exporter import Asked, RunFiles, store_families
from flows.observability.publishing import FOLDER, PORT_VARIABLE, published_figures
from flows.observability.run_figures import RunFigures
from flows.observability.serving import TOKEN_VARIABLE, serving
from pipelines.artifacts.store import building
from pipelines.core.errors import UserError
from pipelines.core.stage import Progress

FINGERPRINT = "0123456789abcdef0123456789abcdef"
_LABELS = {"run": "demo 1", "stage": "pretraining", "fingerprint": FINGERPRINT}


def trained(step: int) -> Progress:
    """What a training tells after some steps."""
    return Progress(
        stage="pretraining",
        done=step,
        total=100,
        unit="steps",
        figures={
            "train/loss": 2.5,
            "speed/tokens_per_second": 1000.0,
            "speed/step_seconds_p50": 0.1,
            "speed/step_seconds_p95": 0.2,
            "speed/step_seconds_p99": 0.4,
            "total/steps": step,
            "total/step_seconds": 3.0,
            "total/data_wait_seconds": 0.25,
            "checkpoint/bytes": 4096.0,
            "checkpoint/stored_at": time.time() - 10,
        },
    )


def told(figures: RunFigures) -> RunFigures:
    """A run whose corpus is done and that trains."""
    figures.observe(Progress(stage="corpus", done=3, total=4, unit="parts"))
    with building("encoder", FINGERPRINT):
        figures.observe(trained(30))
    return figures


def registry_of(collector: object) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(collector)  # type: ignore[arg-type]
    return registry


def samples(text: str) -> dict[tuple[str, str, str], float]:
    """Values by name, stage and quantile."""
    return {
        (sample.name, sample.labels.get("stage", ""), sample.labels.get("quantile", "")): (
            sample.value
        )
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_the_names_and_labels_that_dashboards_ask_for() -> None:
    started = time.time()
    registry = registry_of(told(RunFigures("demo 1")))
    found = samples(generate_latest(registry).decode())
    at = "pretraining"
    assert found["bertsmith_step", at, ""] == 30
    assert found["bertsmith_loss", at, ""] == 2.5
    assert found["bertsmith_tokens_per_second", at, ""] == 1000
    assert found["bertsmith_step_seconds", at, "0.99"] == 0.4
    assert found["bertsmith_step_seconds_count", at, ""] == 30
    assert found["bertsmith_data_wait_seconds_total", at, ""] == 0.25
    assert found["bertsmith_checkpoint_bytes", at, ""] == 4096
    age = found["bertsmith_checkpoint_age_seconds", at, ""]
    assert 10 - 0.01 <= age <= 10.01 + time.time() - started
    assert found["bertsmith_shards_done", "corpus", ""] == 3
    assert found["bertsmith_shards_total", "corpus", ""] == 4
    assert registry.get_sample_value("bertsmith_step", _LABELS) == 30


def test_a_rate_that_nobody_has_told_for_a_minute_is_no_rate_of_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run_figures, "_FRESH_SECONDS", 0.0)
    registry = registry_of(told(RunFigures("demo 1")))
    assert registry.get_sample_value("bertsmith_step", _LABELS) == 30
    assert registry.get_sample_value("bertsmith_tokens_per_second", _LABELS) is None


def test_a_training_that_is_over_has_no_figures_and_done_parts_of_the_data_stay() -> None:
    figures = told(RunFigures("demo 1"))
    figures.stage_ended()
    found = samples(generate_latest(registry_of(figures)).decode())
    assert {name for name, _, _ in found} == {"bertsmith_shards_done", "bertsmith_shards_total"}
    figures.observe(trained(40))  # the next one
    again = samples(generate_latest(registry_of(figures)).decode())
    assert again["bertsmith_step", "pretraining", ""] == 40


def test_runs_of_a_home_are_served_together_and_those_of_killed_ones_are_not(
    tmp_path: Path,
) -> None:
    folder = tmp_path / FOLDER
    folder.mkdir()
    for name in ("demo 1", "demo 2", "killed"):
        write_to_textfile(str(folder / f"{name}.prom"), registry_of(told(RunFigures(name))))
    os.utime(folder / "killed.prom", (0, 0))
    text = generate_latest(registry_of(RunFiles(folder))).decode()
    assert text.count("# TYPE bertsmith_step gauge") == 1
    assert 'run="demo 1"' in text
    assert 'run="demo 2"' in text
    assert "killed" not in text


def test_a_run_writes_its_file_while_it_lasts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flows.observability.publishing._WRITE_SECONDS", 0.05)
    monkeypatch.setenv("BERTSMITH_HOME", str(tmp_path))
    file = tmp_path / FOLDER / "id.prom"
    with published_figures("demo 1", "id") as figures:
        told(figures)
        deadline = time.monotonic() + 240
        while not (file.exists() and "bertsmith_step{" in file.read_text()):
            assert time.monotonic() < deadline
            time.sleep(0.02)
    assert not file.exists()


def test_a_home_that_cannot_be_written_and_a_port_that_is_taken_stop_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("flows.observability.publishing._WRITE_SECONDS", 0.01)
    (tmp_path / "file").touch()
    monkeypatch.setenv("BERTSMITH_HOME", str(tmp_path / "file"))
    taken = serving(CollectorRegistry(), port=0)
    monkeypatch.setenv(PORT_VARIABLE, str(taken.port))
    with published_figures("demo 1", "id") as figures:
        told(figures)
        deadline = time.monotonic() + 240
        while "figures are not written" not in caplog.text:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(0.1)  # some turns more
    taken.close()
    assert "figures are not served" in caplog.text
    assert caplog.text.count("figures are not written") == 1


def test_a_port_answers_who_brings_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, "secret")
    served = serving(registry_of(told(RunFigures("demo 1"))), port=0)
    url = f"http://127.0.0.1:{served.port}/metrics"
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=240)
    request = urllib.request.Request(url, headers={"Authorization": "Bearer secret"})
    with urllib.request.urlopen(request, timeout=240) as response:
        assert b"bertsmith_step{" in response.read()
    served.close()


def test_other_machines_are_not_served_without_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    with pytest.raises(UserError, match="need a token"):
        serving(CollectorRegistry(), port=0, host="0.0.0.0")


def test_the_store_is_weighed(tmp_path: Path) -> None:
    (tmp_path / "store" / "corpus").mkdir(parents=True)
    (tmp_path / "store" / "corpus" / "file").write_bytes(b"x" * 100)
    (family,) = store_families(str(tmp_path / "store"))
    assert family.samples[0].value == 100
    (family,) = store_families(str(tmp_path / "none"))
    assert family.samples[0].value == 0


def test_a_source_that_fails_keeps_its_last_answer_and_says_so() -> None:
    family = GaugeMetricFamily("bertsmith_runs_queued", "Of a test.")
    waits, asked_again = threading.Event(), threading.Event()

    def ask() -> list[Metric]:
        if waits.is_set():
            asked_again.set()
            raise RuntimeError("away")
        waits.set()
        return [family]

    asked = Asked("prefect", ask, seconds=0.05)
    assert asked_again.wait(240)
    deadline = time.monotonic() + 240
    while asked.has_answered():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert list(asked.collect()) == [family]
