"""Figures for Prometheus: what Ray tells of a run, what `bertsmith metrics` serves, and to whom."""

import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.parser import text_string_to_metric_families

from flows.services.exporter import TOKEN_VARIABLE, keep_asking, metrics_server, store_bytes
from pipelines import run_metrics
from pipelines.artifacts.store import building
from pipelines.config.errors import UserError
from pipelines.run_metrics import RunMetrics, published_metrics
from pipelines.stage import Progress

FINGERPRINT = "0123456789abcdef0123456789abcdef"

Sample = tuple[str, str, str]


def trained(step: int) -> Progress:
    """What a training run tells after some steps."""
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


def observed(metrics: RunMetrics) -> None:
    """A run whose corpus is done and that trains."""
    metrics.observe(Progress(stage="corpus", done=3, total=4, unit="parts"))
    with building("encoder", FINGERPRINT):
        metrics.observe(trained(30))


@pytest.fixture
def set_values(monkeypatch: pytest.MonkeyPatch) -> Callable[[RunMetrics], dict[Sample, float]]:
    """What a run would set Ray's gauges to now, by name, stage and quantile."""
    values: dict[Sample, float] = {}

    class Gauge:
        def __init__(self, name: str, purpose: str, tag_keys: tuple[str, ...]) -> None:
            assert purpose
            self._name, self._labels = name, set(tag_keys)

        def set(self, value: float, labels: dict[str, str]) -> None:
            assert labels.keys() == self._labels
            assert labels["run"] == "demo 1"
            values[self._name, labels["stage"], labels["quantile"]] = value

    def look(metrics: RunMetrics) -> dict[Sample, float]:
        values.clear()
        metrics.set_gauges()
        return dict(values)

    monkeypatch.setattr("ray.util.metrics.Gauge", Gauge)
    return look


def test_the_names_that_dashboards_ask_for(
    set_values: Callable[[RunMetrics], dict[Sample, float]],
) -> None:
    started = time.time()
    metrics = RunMetrics("demo 1")
    observed(metrics)
    found = set_values(metrics)
    at = "pretraining"
    assert found["bertsmith_step", at, ""] == 30
    assert found["bertsmith_steps_planned", at, ""] == 100
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


def test_a_rate_that_was_not_reported_for_a_minute_is_left_out(
    set_values: Callable[[RunMetrics], dict[Sample, float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_metrics, "_FRESH_SECONDS", 0.0)
    metrics = RunMetrics("demo 1")
    observed(metrics)
    names = {name for name, _, _ in set_values(metrics)}
    assert "bertsmith_step" in names
    assert not names & {"bertsmith_tokens_per_second", "bertsmith_step_seconds"}


def test_a_training_run_that_is_over_has_no_figures_and_done_parts_of_the_data_stay(
    set_values: Callable[[RunMetrics], dict[Sample, float]],
) -> None:
    metrics = RunMetrics("demo 1")
    observed(metrics)
    metrics.stage_ended()
    names = {name for name, _, _ in set_values(metrics)}
    assert names == {"bertsmith_shards_done", "bertsmith_shards_total"}
    metrics.observe(trained(40))  # the next one
    assert set_values(metrics)["bertsmith_step", "pretraining", ""] == 40


@pytest.mark.slow
def test_rays_agent_answers_prometheus_for_as_long_as_the_run_lasts(
    local_ray: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    monkeypatch.setattr(run_metrics, "_SET_SECONDS", 0.5)
    port = ray.nodes()[0]["MetricsExportPort"]

    def told() -> dict[Sample, float]:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as response:
            text = response.read().decode()
        return {
            (each.name, each.labels["stage"], each.labels.get("quantile", "")): each.value
            for family in text_string_to_metric_families(text)
            for each in family.samples
            if each.labels.get("run") == "demo 1"
        }

    def wait_until(is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 240
        while not is_so():
            assert time.monotonic() < deadline
            time.sleep(1)

    with published_metrics("demo 1") as metrics:
        observed(metrics)
        wait_until(lambda: ("ray_bertsmith_step", "pretraining", "") in told())
        found = told()
        assert found["ray_bertsmith_step_seconds", "pretraining", "0.99"] == 0.4
        assert found["ray_bertsmith_data_wait_seconds_total", "pretraining", ""] == 0.25
        assert found["ray_bertsmith_step_seconds_count", "pretraining", ""] == 30
        time.sleep(30)  # a run that hangs reports nothing new, and its figures stay
        assert told()["ray_bertsmith_step", "pretraining", ""] == 30
    wait_until(lambda: not told())


def test_figures_are_served_to_those_who_bring_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, "secret")
    registry = CollectorRegistry()
    Gauge("bertsmith_store_bytes", "Of a test.", registry=registry)
    server = metrics_server(registry, port=0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/metrics"
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=240)
    request = urllib.request.Request(url, headers={"Authorization": "Bearer secret"})
    with urllib.request.urlopen(request, timeout=240) as response:
        assert b"bertsmith_store_bytes 0.0" in response.read()
    server.shutdown()
    server.server_close()


def test_other_machines_are_not_served_without_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    with pytest.raises(UserError, match="requires a token"):
        metrics_server(CollectorRegistry(), port=0, host="0.0.0.0")


def test_the_store_is_weighed(tmp_path: Path) -> None:
    (tmp_path / "store" / "corpus").mkdir(parents=True)
    (tmp_path / "store" / "corpus" / "file").write_bytes(b"x" * 100)
    assert store_bytes(str(tmp_path / "store")) == 100
    assert store_bytes(str(tmp_path / "none")) == 0


def test_a_source_that_fails_keeps_its_last_answer_and_says_so() -> None:
    registry = CollectorRegistry()
    queued = Gauge("bertsmith_runs_queued", "Of a test.", registry=registry)
    up = Gauge("bertsmith_source_up", "Of a test.", registry=registry)
    was_asked = threading.Event()

    def ask() -> None:
        if was_asked.is_set():
            raise RuntimeError("away")
        was_asked.set()
        queued.set(3)
        up.set(-1)  # until it is known whether this call succeeded

    keep_asking(ask, 0.05, up)
    assert was_asked.wait(240)
    deadline = time.monotonic() + 240
    while registry.get_sample_value("bertsmith_source_up") != 0:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert registry.get_sample_value("bertsmith_runs_queued") == 3


def test_a_measurement_that_has_ended_is_no_training_that_hangs(
    set_values: Callable[[RunMetrics], dict[Sample, float]],
) -> None:
    metrics = RunMetrics("demo 1")
    metrics.observe(replace(trained(37), stage="measuring a step"))
    metrics.observe(trained(40))
    steps = {stage for name, stage, _ in set_values(metrics) if name == "bertsmith_step"}
    assert steps == {"pretraining"}
