"""Run in a process of its own: load registered models and print the accuracies they reach.

Reads one JSON request on standard input, prints one JSON list. Nothing of `bert_core` may be
imported before a model is loaded: a model has to run with the code it carries.
"""

import json
import sys
from pathlib import Path
from typing import Any

import mlflow


def main() -> None:
    """Answer the request on standard input."""
    request = json.load(sys.stdin)
    mlflow.set_tracking_uri(request["tracking_uri"])
    mlflow.set_registry_uri(request["tracking_uri"])
    accuracies = [_accuracy(model, request["store_url"]) for model in request["models"]]
    sys.stdout.write(json.dumps(accuracies) + "\n")


def _accuracy(request: dict[str, Any], store_url: str) -> float:
    loaded = mlflow.pyfunc.load_model(request["uri"])
    _check_own_code()
    # Imported only now, so that they find the model's own bert_core already there.
    from pipelines.artifacts import ArtifactStore

    kind = {"encoder": "examples", "classifier": "task"}[request["kind"]]
    data = ArtifactStore(store_url).find(kind, request["fingerprint"])
    if data is None:
        raise FileNotFoundError(f"no {kind} {request['fingerprint']} in the store {store_url}")
    if kind == "task":
        return _classifier_accuracy(loaded, data)
    return _encoder_accuracy(loaded.unwrap_python_model().model, data, request["max_examples"])


def _classifier_accuracy(loaded: Any, task: Any) -> float:
    import pandas as pd

    from pipelines.stages.labelled.stage import read_split

    heldout = read_split(task, "heldout")
    answers = loaded.predict(pd.DataFrame({"text": heldout.texts}))["label"]
    expected = [task.statistics["labels"][index] for index in heldout.labels]
    return sum(a == b for a, b in zip(answers, expected, strict=True)) / len(expected)


def _encoder_accuracy(model: Any, examples: Any, max_examples: int) -> float:
    from pipelines.stages.examples.batches import ExampleReader
    from pipelines.stages.pretraining.figures import pretraining_figures

    figures = pretraining_figures(model, ExampleReader(examples, "heldout"), max_examples)
    return figures["eval/mlm_accuracy"]


def _check_own_code() -> None:
    import bert_core

    installed = Path(__file__).parents[3] / "bert_core"
    if Path(bert_core.__file__).parent == installed:
        raise ImportError("the loaded model runs with installed code, not with its own")


if __name__ == "__main__":
    main()
