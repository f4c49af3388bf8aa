"""The demo's chain through a deployment on a whole platform; each of its parts fails once.

PostgreSQL, S3, Prefect, MLflow and a Prefect worker are processes of their own, Ray a head and two
nodes that share nothing but S3. One run is left alone. In the other a node is lost while it makes
data and one while the encoder learns, PostgreSQL stops, and S3 answers 503 for twenty seconds. It
must come to its end by itself, with what the first one made.
"""

import os
import sys
import time
from importlib.metadata import version

import pytest

from benchmarks.stack.whole import Stack
from tests.platform.whole import Made, Platform

pytestmark = pytest.mark.platform

_DATABASE_AWAY_SECONDS = 10.0
_BUSY_SECONDS = 20.0
_DATA = ("corpus", "vocabulary", "examples", "dataset")
_WEIGHTS = "model.safetensors"


def test_a_run_that_meets_every_failure_makes_what_an_undisturbed_one_makes(
    platform: Platform, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stack, cluster = platform.stack, platform.cluster
    started = time.monotonic()
    alone = platform.run("undisturbed")
    platform.finished(alone)
    alone_seconds = time.monotonic() - started

    cluster.join(1)  # one more than the training run needs: it is refused where places are missing
    started = time.monotonic()
    disturbed = platform.run("disturbed")
    lost = platform.lose_one_that_computes(disturbed, "ray::_call")

    platform.await_key(disturbed, "disturbed/encoder/.work-", "/checksums.json")
    lost_in_training = cluster.nodes[-1].address
    cluster.lose(cluster.nodes[-1])
    before = _last_checkpoint(stack)
    stack.postgres.stop()
    time.sleep(_DATABASE_AWAY_SECONDS)
    stack.postgres.start()
    platform.busy.be_busy_once(_reads_checkpoint, _BUSY_SECONDS)
    cluster.join(1)  # without it one place is missing: the training run waits
    platform.finished(disturbed)
    seconds = time.monotonic() - started

    expected, found = platform.made("undisturbed"), platform.made("disturbed")
    assert sorted(found) == sorted(expected)
    for kind in _DATA:
        assert found[kind].fingerprint == expected[kind].fingerprint
        assert found[kind].files == expected[kind].files, kind
    trained = [kind for kind, made in expected.items() if _WEIGHTS in made.files]
    assert len(trained) == 2, "an encoder, and the model that was fine-tuned from it"
    for kind in trained:
        assert found[kind].fingerprint == expected[kind].fingerprint
        assert found[kind].files[_WEIGHTS] == expected[kind].files[_WEIGHTS], kind
    assert not expected["encoder"].statistics["resumed_from"]
    assert before and max(found["encoder"].statistics["resumed_from"]) >= before
    assert any("/encoder/.work-" in path for path in platform.busy.refused)
    assert not [key for key in stack.store.keys_below("disturbed/") if "/.work-" in key]

    for name, value in {
        "MLFLOW_TRACKING_USERNAME": stack.login.user,
        "MLFLOW_TRACKING_PASSWORD": stack.login.password,
    }.items():
        monkeypatch.setenv(name, value)
    encoder = expected["encoder"].fingerprint
    recorded = platform.recorded("disturbed", encoder)
    assert recorded.losses == platform.recorded("undisturbed", encoder).losses
    assert recorded.verified == ["disturbed-classifier", "disturbed-encoder"]

    rows = [
        ("PostgreSQL (under Prefect and MLflow)", stack.postgres.version(),
         f"stopped for {_DATABASE_AWAY_SECONDS:.0f} s while the training waited for a node",
         "both servers found it again"),
        ("S3", stack.store.version(),
         f"answered 503 for {_BUSY_SECONDS:.0f} s ({len(platform.busy.refused)} requests) while "
         "the encoder learned", "asked again until it answered"),
        ("Ray node", version("ray"), f"{lost} killed (SIGKILL) while it made data",
         "its parts were made by others; the same bytes"),
        ("Ray node", version("ray"), f"{lost_in_training} killed (SIGKILL) while the encoder "
         f"learned (step {before} or later)", "the training waited for another, went on from its "
         "last checkpoint; the same bits"),
        ("Prefect server and worker", version("prefect"), "their database went away and came back",
         "the run ended as completed"),
        ("MLflow server", version("mlflow"), "its database went away and came back",
         f"all {len(recorded.losses)} points of the loss, each once and the same; both models "
         "proved themselves"),
    ]  # fmt: skip
    table = _table(rows, alone_seconds, seconds, expected)
    with capsys.disabled():
        sys.stdout.write(f"\n{table}\n")


def _reads_checkpoint(method: str, path: str) -> bool:
    """Whether a request reads a checkpoint of the encoder."""
    return method == "GET" and "/encoder/.work-" in path and "/checkpoint_" in path


def _last_checkpoint(stack: Stack) -> int:
    """The step of the newest checkpoint that is whole; 0 where there is none."""
    keys = stack.store.keys_below("disturbed/encoder/.work-")
    whole = [key.partition("checkpoint_")[2] for key in keys if key.endswith("/checksums.json")]
    return max((int(name.partition("-")[0]) for name in whole), default=0)


def _table(
    rows: list[tuple[str, str, str, str]],
    alone_seconds: float,
    seconds: float,
    made: dict[str, Made],
) -> str:
    lines = [
        "# The demo's chain on a whole platform, each part of which fails once",
        "",
        f"{time.strftime('%Y-%m-%d')}. {os.cpu_count()} cores, which carry all servers and nodes "
        f"(load average {os.getloadavg()[2]:.0f} over the last quarter of an hour).",
        "",
        "| component | version | what was done to it | outcome |",
        "|---|---|---|---|",
        *(f"| {' | '.join(row)} |" for row in rows),
        "",
        f"The run that was left alone took {alone_seconds:.0f} s, this one {seconds:.0f} s. Both "
        "made the same artifacts:",
        "",
        "| artifact | fingerprint | what was compared |",
        "|---|---|---|",
        *(
            f"| {kind} | {made[kind].fingerprint} | SHA-256 of all {len(made[kind].files)} files |"
            for kind in _DATA
        ),
        *(
            f"| {kind.partition(',')[0]} | {each.fingerprint} | SHA-256 of the weights |"
            for kind, each in made.items()
            if _WEIGHTS in each.files
        ),
        "",
    ]
    return "\n".join(lines)
