"""Prometheus' configuration, its rules and Grafana's dashboards: every metric they query exists."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.services import exporter
from pipelines.run_metrics import RunMetrics
from pipelines.stage import Progress
from tests.delivery.declared import INFRA, PROMETHEUS, ROOT

MONITORING = INFRA / "monitoring"
DASHBOARDS = sorted((MONITORING / "dashboards").glob("*.json"))
IN_KUBERNETES = MONITORING / "kubernetes.yaml"
FUNCTIONS = {
    "absent", "and", "by", "changes", "clamp_min", "delta", "deriv", "le", "or", "rate", "sum",
    "unless", "up", "ALERTS",
    "SeaweedFS_s3_request_total",  # SeaweedFS' own
}  # fmt: skip


def panels(path: Path) -> Iterator[dict[str, Any]]:
    yield from json.loads(path.read_text(encoding="utf-8"))["panels"]


def expressions() -> dict[str, str]:
    """Every query, by where it stands."""
    found = {}
    for path in DASHBOARDS:
        for panel in panels(path):
            for target in panel["targets"]:
                found[f"{path.stem}: {panel['title']} {target['refId']}"] = target["expr"]
    rules = yaml.safe_load((MONITORING / "rules.yaml").read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            found[f"rule {rule['alert']}"] = rule["expr"]
    return found


def as_prometheus_sees_it(expression: str) -> str:
    """Without Grafana's variables, which it puts in before it asks."""
    return re.sub(r"\$\w+", ".*", expression)


@pytest.fixture
def told(prefect_api: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The names of the metrics of a training run, a data stage, a store and Prefect."""
    names = set()

    class Gauge:
        def __init__(self, name: str, purpose: str, tag_keys: tuple[str, ...]) -> None:
            names.add(f"ray_{name}")  # Ray puts that before the names of all gauges

        def set(self, value: float, labels: dict[str, str]) -> None:
            pass

    monkeypatch.setattr("ray.util.metrics.Gauge", Gauge)
    metrics = RunMetrics("a run")
    metrics.observe(Progress(
        stage="pretraining", done=3, total=9, unit="steps",
        figures={
            "train/loss": 2.0, "speed/tokens_per_second": 900.0, "speed/step_seconds": 0.5,
            "speed/step_seconds_p50": 0.5, "speed/step_seconds_p95": 0.6,
            "speed/step_seconds_p99": 0.7, "total/data_wait_seconds": 1.0, "total/steps": 3,
            "total/step_seconds": 1.5, "checkpoint/bytes": 100, "checkpoint/stored_at": 1.0,
        },
    ))  # fmt: skip
    metrics.observe(Progress(stage="corpus", done=1, total=4, unit="shards"))
    metrics.set_gauges()
    monkeypatch.setattr(exporter, "keep_asking", lambda ask, seconds, up: ask())
    families = exporter.store_and_queues(str(tmp_path)).collect()
    return names | {family.name for family in families}


def test_every_figure_of_ours_that_is_asked_for_is_told(told: set[str]) -> None:
    asked = {
        name for each in expressions().values()
        for name in re.findall(r"(?:ray_)?bertsmith_\w+", each)
    }  # fmt: skip
    assert len(asked) > 12
    assert not asked - told


def test_every_figure_of_rays_that_is_asked_for_exists() -> None:
    spec = find_spec("ray.dashboard.modules.reporter.reporter_agent")
    assert spec is not None
    assert spec.origin is not None
    source = Path(spec.origin).read_text(encoding="utf-8")
    known = {f"ray_{name}" for name in re.findall(r'"(node_\w+)"', source)}
    asked = {name for each in expressions().values() for name in re.findall(r"ray_\w+", each)}
    rays = {name for name in asked if not name.startswith("ray_bertsmith_")}
    assert len(rays) > 5
    assert not rays - known


def test_nothing_else_is_asked_for() -> None:
    for where, each in expressions().items():
        bare = re.sub(r'"[^"]*"|\{[^}]*\}|\[[^\]]*\]|\bby \([^)]*\)|\boffset \w+', "", each)
        others = {
            name for name in re.findall(r"[A-Za-z_]\w*", bare)
            if not name.startswith(("bertsmith_", "ray_"))
        }  # fmt: skip
        assert others <= FUNCTIONS, where


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs Prometheus' promtool")
def test_prometheus_takes_its_configuration_and_every_query(tmp_path: Path) -> None:
    def checked(*arguments: str | Path) -> str:
        done = subprocess.run(
            ["promtool", "check", *arguments], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    checked("config", "--syntax-only", PROMETHEUS)
    # Debian's knows every field but how pods are found.
    in_kubernetes = yaml.safe_load(IN_KUBERNETES.read_text(encoding="utf-8"))
    for job in in_kubernetes["scrape_configs"]:
        (pods,) = job.pop("kubernetes_sd_configs")
        assert pods == {"role": "pod", "namespaces": {"names": ["bertsmith"]}}
    rest = tmp_path / "rest.yaml"
    rest.write_text(yaml.safe_dump(in_kubernetes))
    checked("config", "--syntax-only", rest)
    assert "8 rules found" in checked("rules", MONITORING / "rules.yaml")
    asked = expressions()
    rules = [
        {"record": f"query:{number}", "expr": as_prometheus_sees_it(each)}
        for number, each in enumerate(asked.values())
    ]
    file = tmp_path / "queries.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    assert f"{len(asked)} rules found" in checked("rules", file)


# Two hours, a sample a minute: a training run that hangs, one that began twelve minutes ago and
# took no step, one whose last step is done, one that is over; of those that are
# scraped two that do not answer, one that does, one that is gone, and another project's; and runs
# that failed, beside old ones that were deleted.
SERIES = {
    'ray_bertsmith_step{run="hangs",stage="pretraining"}': "1+1x29 30x90",
    'ray_bertsmith_steps_planned{run="hangs",stage="pretraining"}': "100x120",
    'ray_bertsmith_checkpoint_age_seconds{run="hangs",stage="pretraining"}': "0+60x120",
    'ray_bertsmith_step{run="begins",stage="pretraining"}': "_x107 0x12",
    'ray_bertsmith_steps_planned{run="begins",stage="pretraining"}': "_x107 100x12",
    'ray_bertsmith_step{run="is done"}': "71+1x29 100x90",
    'ray_bertsmith_steps_planned{run="is done"}': "100x120",
    'ray_bertsmith_checkpoint_age_seconds{run="is done"}': "0+60x120",
    'ray_bertsmith_step{run="is over"}': "1+1x29 stale",
    'ray_bertsmith_steps_planned{run="is over"}': "100x29 stale",
    'up{job="ray",instance="a:8080"}': "0x120",
    'up{job="bertsmith",instance="metrics:9464"}': "1x120",
    'up{job="node",instance="of-another-team:9100"}': "0x120",
    'bertsmith_runs{state="failed"}': "5x90 6x30",
    'bertsmith_runs{state="crashed"}': "9x90 2x30",
}
HANGS = {"run": "hangs", "stage": "pretraining"}
FIRING = {
    "TrainingStandsStill": [
        (HANGS, "pretraining hangs has taken no step for a quarter of an hour"),
    ],
    "CheckpointIsOld": [(HANGS, "a kill of hangs would cost 1h 59m 0s of work")],
    "TargetIsSilent": [
        ({"job": "ray", "instance": "a:8080"}, "ray at a:8080 does not answer"),
        ({"job": "prefect"}, "prefect does not answer"),
    ],
    "RunsFail": [({"state": "failed"}, "1 runs failed within the hour: see Prefect's page")],
}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs Prometheus' promtool")
def test_alerts_are_of_trainings_that_go_on_and_of_runs_that_failed(tmp_path: Path) -> None:
    alerts = [
        {
            "eval_time": "119m",
            "alertname": name,
            "exp_alerts": [
                {"exp_labels": labels, "exp_annotations": {"summary": summary}}
                for labels, summary in expected
            ],
        }
        for name, expected in FIRING.items()
    ]
    series = [{"series": name, "values": values} for name, values in SERIES.items()]
    asked = {
        "rule_files": [str(MONITORING / "rules.yaml")],
        "tests": [{"interval": "1m", "input_series": series, "alert_rule_test": alerts}],
    }
    file = tmp_path / "alerts.yaml"
    file.write_text(yaml.safe_dump(asked))
    done = subprocess.run(
        ["promtool", "test", "rules", file], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_jobs_that_are_named_are_there() -> None:
    files = (PROMETHEUS, IN_KUBERNETES)
    read = [yaml.safe_load(file.read_text(encoding="utf-8"))["scrape_configs"] for file in files]
    jobs = {job["job_name"] for each in read for job in each}
    matched = [re.findall(r'job=~?"(.+?)"', each) for each in expressions().values()]
    named = {name for each in matched for names in each for name in names.split("|")}
    assert named == jobs
    # A Prometheus of one's own has the targets of others, too.
    assert not [each for each in expressions().values() if re.search(r"\bup\b(?!{job=)", each)]


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl renders the ConfigMaps")
def test_in_kubernetes_the_same_rules_and_dashboards_are_given() -> None:
    done = subprocess.run(
        ["kubectl", "kustomize", MONITORING], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    maps = {each["metadata"]["name"]: each for each in yaml.safe_load_all(done.stdout)}
    rules = (MONITORING / "rules.yaml", IN_KUBERNETES)
    for name, files in {"bertsmith-prometheus": rules, "bertsmith-dashboards": DASHBOARDS}.items():
        assert maps[name]["data"] == {file.name: file.read_text() for file in files}
    assert maps["bertsmith-dashboards"]["metadata"]["labels"] == {"grafana_dashboard": "1"}
    deploying = (ROOT / "docs" / "deploying.md").read_text(encoding="utf-8")
    for file in rules:
        assert f"[/etc/bertsmith/prometheus/{file.name}]" in deploying


def test_dashboards_are_three_and_ask_the_source_that_is_there() -> None:
    assert [path.stem for path in DASHBOARDS] == ["data", "platform", "training"]
    source = yaml.safe_load((MONITORING / "grafana-source.yaml").read_text())["datasources"][0]
    provider = yaml.safe_load((MONITORING / "grafana-dashboards.yaml").read_text())["providers"][0]
    mounted = "./monitoring/dashboards:" + provider["options"]["path"]
    assert mounted in (INFRA / "compose.yaml").read_text()
    names = set()
    for path in DASHBOARDS:
        board = json.loads(path.read_text(encoding="utf-8"))
        names.add(board["uid"])
        identities = [panel["id"] for panel in board["panels"]]
        assert len(identities) == len(set(identities))
        for panel in board["panels"]:
            assert panel["datasource"]["uid"] == source["uid"]
            place = panel["gridPos"]
            assert place["x"] + place["w"] <= 24
    assert len(names) == 3
