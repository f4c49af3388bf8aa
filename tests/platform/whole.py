"""The demo's chain at a small size, through a deployment of a whole platform."""

import json
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import UUID

from benchmarks.raylets import Raylets
from benchmarks.stack.object_store import BUCKET
from benchmarks.stack.runs import ended, read, trigger, wait_until
from benchmarks.stack.whole import Stack
from tests.integration.busy_stores import BusyStore

NODES = (2, 2)  # CPUs of each
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
        "num_steps": 200,
        "examples_per_step": 32,
        "micro_batch_examples": 16,
        "evaluate_every_steps": 100,
        "checkpoint_every_steps": 10,
        "evaluation_examples": 64,
        "final_evaluation_examples": 64,
    },
    "labelled": {
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
            "place": {
                "store": f"s3://{BUCKET}/{name}",
                "experiment": name,
                "num_workers": 4,
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
        state = ended(self.stack, flow_run).state
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
            found[kind] = Made(manifest["fingerprint"], files)
        return found

    def await_keys(self, flow_run: UUID, prefix: str, part: str, count: int = 1) -> None:
        """Return when the store has so many keys below `prefix` with `part` in their names."""

        def are_there() -> bool:
            run = read(self.stack, flow_run)
            if run is not None and run.state is not None:
                assert not run.state.is_final(), f"{run.state.name} too soon: {run.state.message}"
            keys = self.stack.store.keys_below(prefix)
            return len([key for key in keys if part in key]) >= count

        wait_until(are_there, 1800, f"{count} of {prefix}…{part}")
