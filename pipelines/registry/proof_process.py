"""Run in a process of its own: load one version of a registered model, write what it reaches.

Reads a JSON request on standard input; the answer is a JSON file. Nothing of `bert_core` may be
imported before the model is loaded: a model has to run with the code it carries.
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

# Exit statuses, as sysexits.h has them, each with one sentence on standard error.
TRY_AGAIN = 75  # tracker or store did not answer, or disk or memory was full
REFUSED = 65  # the package is not what was registered, or the data asks for something else


class OtherQuestionError(Exception):
    """Held-out data that asks for something else than the model answers."""


def main() -> None:
    """Answer the request on standard input."""
    from pipelines.errors import first_line
    from pipelines.registry.seal import ChangedPackageError
    from pipelines.tracking.tracker import is_transient

    request = json.load(sys.stdin)
    with tempfile.TemporaryDirectory(prefix="bertsmith-proof-") as scratch:
        try:
            answer = _reached(request, *_fetched(request, scratch))
        except Exception as error:  # tracker, store and network have no kind in common
            is_refused = isinstance(error, ChangedPackageError | OtherQuestionError)
            if not is_refused and not is_transient(error) and not _lacks_room(error):
                raise
            sys.stderr.write(f"{first_line(error)}\n")
            sys.exit(REFUSED if is_refused else TRY_AGAIN)
    Path(request["answer_file"]).write_text(json.dumps(answer))


def _lacks_room(error: BaseException | None) -> bool:
    """Whether a disk or the memory was full, which says nothing about the model."""
    from pipelines.store.access import FULL

    while error is not None:
        is_of_torch = type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(
            error
        )
        if isinstance(error, MemoryError) or is_of_torch or getattr(error, "errno", None) in FULL:
            return True
        error = error.__cause__ or error.__context__
    return False


def _fetched(request: dict[str, Any], scratch: str) -> tuple[Path, Any]:
    """The package, and the artifact with the held-out data, their files on this machine."""
    import mlflow

    from pipelines.store import ArtifactStore
    from pipelines.tracking.tracker import make_default, time_for_files

    make_default(request["tracking_uri"])
    with time_for_files():
        package = Path(mlflow.artifacts.download_artifacts(request["uri"], dst_path=scratch))
    kind, fingerprint = request["data_kind"], request["fingerprint"]
    data = ArtifactStore(request["store_url"]).find(kind, fingerprint)
    if data is None:
        raise LookupError(f"the held-out {kind} {fingerprint} is not in the store")
    for name in (*data.names("heldout"), *data.names("probe"), *data.names("task")):
        data.local(name)
    return package, data


def _reached(request: dict[str, Any], package: Path, data: Any) -> dict[str, Any]:
    """The model's score and answers, and what computed them."""
    import mlflow
    import torch

    from pipelines.registry.seal import sealed_files
    from pipelines.versions import computing_machine

    for bytecode in list(package.rglob("__pycache__")):  # of this copy; it was never sealed
        shutil.rmtree(bytecode)
    sealed_files(package, request["digest"])
    if request["threads"]:
        torch.set_num_threads(int(request["threads"]))  # sums are split among them
    loaded = mlflow.pyfunc.load_model(str(package))
    import bert_core

    if Path(bert_core.__file__).parent == Path(__file__).parents[2] / "bert_core":
        raise ImportError("the loaded model runs with installed code, not with its own")
    loaded.predict(loaded.input_example)  # as a server calls it
    reach = {"examples": _of_encoder, "dataset": _of_task}.get(request["data_kind"], _response)
    reached = reach(loaded.unwrap_python_model(), data, request)
    return {**reached, "machine": computing_machine()}


# What follows imports stages, which find the model's own bert_core already there.


def _of_task(served: Any, dataset: Any, request: dict[str, Any]) -> dict[str, Any]:
    from pipelines.stages.dataset.stage import family_of, read_items
    from pipelines.tasks import Reading
    from pipelines.tasks.calibration import log_losses

    model, family, heldout = served.model, family_of(dataset), read_items(dataset, "heldout")
    for columns in ("takes", "gives"):  # of a user's own task, whose code may have changed
        if getattr(model, columns, None) != getattr(family.model, columns, None):
            raise OtherQuestionError(f"it has other columns in {columns}")
    labels = set(getattr(model, "labels", None) or ())
    if odd := sorted(labels and labels ^ set(heldout.labels)):
        raise OtherQuestionError(f"it has other labels: {', '.join(odd[:5])}")
    reading = Reading(model.config.max_position_embeddings)
    answers = family.answers(model, served.tokenizer, heldout, reading)
    return {
        "value": family.figures(answers, heldout)[request["metric"]],
        "answers": answers.values,
        "losses": log_losses(answers),
    }


def _of_encoder(served: Any, examples: Any, request: dict[str, Any]) -> dict[str, Any]:
    from pipelines.stages.examples.batches import ExampleReader
    from pipelines.stages.pretraining.figures import pretraining_figures, sequence_losses

    model, reader = served.model, ExampleReader(examples, "heldout")
    predicts_tokens = {"eval/mlm_accuracy": "pretraining", "eval/clm_accuracy": "language_model"}
    if model.head_name != predicts_tokens.get(request["metric"], model.head_name):
        raise OtherQuestionError(f"it has the head {model.head_name}")
    vocabulary = examples.local("vocab.txt").read_text(encoding="utf-8")
    if vocabulary.split("\n") != served.tokenizer.files()["vocab.txt"].split("\n"):
        raise OtherQuestionError("it has another vocabulary, whose tokens are another question")
    longest = model.config.max_position_embeddings
    if reader.max_tokens > longest:
        raise OtherQuestionError(f"it reads {longest} tokens, the examples have more")
    figures = pretraining_figures(model, reader, request["max_examples"])
    losses = sequence_losses(model, reader, request["max_examples"])
    return {"value": figures[request["metric"]], "answers": losses.tolist()}


def _response(served: Any, imported: Any, request: dict[str, Any]) -> dict[str, Any]:
    """The outputs of an imported model for texts: it has no other figures."""
    from bert_core.inference.pretrained import probe

    texts = json.loads(imported.local("probe.json").read_text(encoding="utf-8"))["texts"]
    response, count = probe(served.model, served.tokenizer, texts)
    return {"value": response, "answers": [count]}


if __name__ == "__main__":
    main()
