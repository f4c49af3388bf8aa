"""The demo's chain at a small size, through a deployment of a whole platform."""

import json
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import UUID

from mlflow import MlflowClient

from benchmarks.raylets import Raylets
from benchmarks.stack.object_store import BUCKET
from benchmarks.stack.runs import read, trigger, wait_for_run, wait_until
from benchmarks.stack.whole import Stack
from pipelines.registry.find import VERIFIED_TAG
from tests.integration.busy_stores import BusyStore

NODES = (1, 1)  # CPUs of each: a training run of two workers needs both, and waits for a lost one
_RECIPE: dict[str, Any] = {
    "corpus": {
        "sources": [
            {
                "kind": "installed_documentation",
                "packages": ["numpy", "networkx"],
                "max_source_megabytes": 0.6,
            }
        ],
        "shard_megabytes": 0.1,
    },
    "vocabulary": {"size": 1200},
    "examples": {"max_tokens": 64, "shard_tokens": 20_000},
    "pretraining": {
        "num_steps": 400,
        "global_batch_size": 32,
        "micro_batch_size": 16,
        "evaluate_every_steps": 200,
        "checkpoint_every_steps": 50,
        "evaluation_examples": 64,
        "final_evaluation_examples": 64,
    },
    "dataset": {
        "source": {
            "kind": "corpus_source",
            "max_train_documents": 200,
            "max_heldout_documents": 100,
        }
    },
    "finetuning": {"num_epochs": 1, "num_evaluations": 1, "compare_with_random": False},
}


class Made(NamedTuple):
    """An artifact as the store names it."""

    fingerprint: str
    files: dict[str, str]  # SHA-256 by name
    statistics: dict[str, Any]


class Recorded(NamedTuple):
    """What the tracker knows of a run of the chain."""

    losses: dict[int, float]  # of the encoder, by step
    verified: list[str]  # registered models that proved themselves


@dataclass(frozen=True)
class Platform:
    """All of it, and what stands between S3 and its clients."""

    stack: Stack
    cluster: Raylets
    busy: BusyStore

    def run(self, name: str) -> UUID:
        """A new run of the demo's deployment at a small size, with a store of its own."""
        recipe = {
            **_RECIPE,
            "name": name,
            "runtime": {
                "store": f"s3://{BUCKET}/{name}",
                "experiment": name,
                "num_workers": 2,
                "training_workers": 2,
                "cpus_per_worker": 1,
                "max_failures": 10,
            },
            "registration": {
                "encoder_name": f"{name}-encoder",
                "classifier_name": f"{name}-classifier",
            },
        }
        return trigger(self.stack, "end-to-end/demo", {"recipe": recipe})

    def finished(self, flow_run: UUID) -> None:
        """Return when the run was completed; an error says what it ended with instead."""
        state = wait_for_run(self.stack, flow_run).state
        assert state is not None
        assert state.is_completed(), f"{state.name}: {state.message}"

    def made(self, name: str) -> dict[str, Made]:
        """What lies in the store of a run, by kind."""
        client = self.stack.store.client()
        found = {}
        for key in self.stack.store.keys_below(f"{name}/"):
            if not key.endswith("/manifest.json"):
                continue
            manifest = json.loads(client.get_object(Bucket=BUCKET, Key=key)["Body"].read())
            files = {name: file["sha256"] for name, file in manifest["files"].items()}
            kind = manifest["kind"]
            if kind in found:  # the model that begins with random weights
                kind = f"{kind}, {manifest['fingerprint']}"
            found[kind] = Made(manifest["fingerprint"], files, manifest["statistics"])
        return found

    def recorded(self, name: str, encoder: str) -> Recorded:
        """What MLflow's server tells of the run and of its encoder with this fingerprint."""
        client = MlflowClient(self.stack.mlflow_url)
        experiment = client.get_experiment_by_name(name)
        assert experiment is not None, name
        ids = [run.info.run_id for run in client.search_runs([experiment.experiment_id])
               if run.info.run_name == f"pretraining-{encoder[:8]}"]  # fmt: skip
        (run_id,) = ids  # one run, whatever interrupted it
        points = client.get_metric_history(run_id, "train/loss")
        assert len({point.step for point in points}) == len(points), "each step exactly once"
        models = [f"{name}-encoder", f"{name}-classifier"]
        versions = [version for model in models for version in client.search_model_versions(
            f"name = '{model}'")]  # fmt: skip
        verified = [each.name for each in versions if each.tags.get(VERIFIED_TAG) == "true"]
        return Recorded({point.step: point.value for point in points}, sorted(verified))

    def lose_one_that_computes(self, flow_run: UUID, title: str) -> str:
        """Kill a node while one of its processes has this in its title; the node's address."""
        lost: list[str] = []

        def is_lost() -> bool:
            self._assert_not_over(flow_run)
            for node in self.cluster.nodes:
                if node.computes(title):
                    self.cluster.lose(node)
                    lost.append(node.address)
                    return True
            return False

        wait_until(is_lost, 900, f"a node that computes {title}", 0.1)
        return lost[0]

    def await_key(self, flow_run: UUID, prefix: str, end: str) -> None:
        """Return when the store has a key below `prefix` that ends so."""

        def is_there() -> bool:
            self._assert_not_over(flow_run)
            return any(key.endswith(end) for key in self.stack.store.keys_below(prefix))

        wait_until(is_there, 1800, f"{prefix}…{end}", 0.5)

    def _assert_not_over(self, flow_run: UUID) -> None:
        run = read(self.stack, flow_run)
        if run is not None and run.state is not None:
            assert not run.state.is_final(), f"{run.state.name} too soon: {run.state.message}"
