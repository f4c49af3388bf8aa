"""Run in a process of its own: load one version of a registered model, print what it reaches.

Reads a JSON request on standard input, prints a JSON answer. Nothing of `bert_core` may be
imported before the model is loaded: a model has to run with the code it carries.
"""

import json
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import mlflow
from packaging.requirements import Requirement

TRY_AGAIN = 75  # exit status (EX_TEMPFAIL) where tracker or store did not answer


def main() -> None:
    """Answer the request on standard input."""
    from pipelines.core.tracking.tracker import is_transient

    request = json.load(sys.stdin)
    with tempfile.TemporaryDirectory(prefix="bertsmith-proof-") as scratch:
        try:
            package, data = _fetched_package(request, scratch), _fetched_data(request)
        except Exception as error:  # tracker, store and network have no kind in common
            if not is_transient(error):
                raise
            sys.stderr.write(f"{error}\n")
            sys.exit(TRY_AGAIN)
        unmet = _unmet_requirements(package / "requirements.txt")
        answer = {"unmet": unmet} if unmet else {"unmet": [], **_reached(request, package, data)}
    sys.stdout.write(json.dumps(answer) + "\n")


def _fetched_package(request: dict[str, Any], scratch: str) -> Path:
    mlflow.set_tracking_uri(request["tracking_uri"])
    mlflow.set_registry_uri(request["tracking_uri"])
    return Path(mlflow.artifacts.download_artifacts(request["uri"], dst_path=scratch))


def _fetched_data(request: dict[str, Any]) -> Any:
    """The artifact with the held-out data, its files on this machine."""
    from pipelines.artifacts import ArtifactStore

    kind, fingerprint = request["data_kind"], request["fingerprint"]
    data = ArtifactStore(request["store_url"]).find(kind, fingerprint)
    if data is None:
        raise LookupError(f"the held-out {kind} {fingerprint} must be in the store, found none")
    for name in (*data.names("heldout"), *data.names("probe")):
        data.local(name)
    return data


def _reached(request: dict[str, Any], package: Path, data: Any) -> dict[str, Any]:
    """The model's figure, over how many examples, and what computed it; without network."""
    import torch

    from pipelines.core.cluster.machine import computing_machine

    if request["threads"]:
        torch.set_num_threads(int(request["threads"]))  # sums are split among them
    sys.addaudithook(_refuse_network)
    loaded = mlflow.pyfunc.load_model(str(package))
    _check_own_code()
    loaded.predict(loaded.input_example)  # as whoever serves it asks
    reaches = {"examples": _encoder_accuracy, "labelled": _task_score}
    reach = reaches.get(request["data_kind"], _response)
    value, num_examples = reach(loaded, data, request)
    return {"value": value, "examples": num_examples, "machine": computing_machine()}


def _unmet_requirements(file: Path) -> list[str]:
    """What the model declares and this process has not, a phrase each."""
    unmet = []
    for line in file.read_text().splitlines():
        requirement = Requirement(line)
        try:
            installed = version(requirement.name)
        except PackageNotFoundError:
            installed = "none"
        if installed == "none" or not requirement.specifier.contains(installed, prereleases=True):
            unmet.append(f"{requirement.name} {installed} instead of {requirement.specifier}")
    return unmet


def _refuse_network(event: str, arguments: tuple[Any, ...]) -> None:
    """From here on everything is on this machine: who asks for more depends on more."""
    if event in ("socket.getaddrinfo", "socket.connect") and not isinstance(arguments[-1], str):
        raise PermissionError(f"a model must run without network, it asked for {arguments}")


def _task_score(loaded: Any, labelled: Any, request: dict[str, Any]) -> tuple[float, int]:
    # Imported only now, so that they find the model's own bert_core already there.
    from pipelines.stages.labelled.stage import family_of, read_items
    from pipelines.tasks import Reading

    served = loaded.unwrap_python_model()
    family, heldout = family_of(labelled), read_items(labelled, "heldout")
    reading = Reading(served.model.config.max_position_embeddings)
    answers = family.answers(served.model, served.tokenizer, heldout, reading)
    return family.figures(answers, heldout)[request["metric"]], len(heldout.rows)


def _encoder_accuracy(loaded: Any, examples: Any, request: dict[str, Any]) -> tuple[float, int]:
    from pipelines.stages.examples.batches import ExampleReader
    from pipelines.stages.pretraining.figures import pretraining_figures

    model, reader = loaded.unwrap_python_model().model, ExampleReader(examples, "heldout")
    figures = pretraining_figures(model, reader, request["max_examples"])
    return figures[request["metric"]], min(len(reader), request["max_examples"])


def _response(loaded: Any, imported: Any, request: dict[str, Any]) -> tuple[float, int]:
    """Of an imported model, for which there are no figures: what it gives for texts."""
    from bert_core.inference.probing import probe

    served = loaded.unwrap_python_model()
    texts = json.loads(imported.local("probe.json").read_text(encoding="utf-8"))["texts"]
    return probe(served.model, served.tokenizer, texts)


def _check_own_code() -> None:
    import bert_core

    installed = Path(__file__).parents[3] / "bert_core"
    if Path(bert_core.__file__).parent == installed:
        raise ImportError("the loaded model runs with installed code, not with its own")


if __name__ == "__main__":
    main()
