"""Run in a process of its own: load one version of a registered model, print what it reaches.

Reads a JSON request on standard input, prints a JSON answer. Nothing of `bert_core` may be
imported before the model is loaded: a model has to run with the code it carries.
"""

import json
import shutil
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import mlflow
from packaging.requirements import Requirement

TRY_AGAIN = 75  # exit status (EX_TEMPFAIL) where tracker or store did not answer
CHANGED = 65  # exit status (EX_DATAERR) where the package is not what was registered
OTHER = 66  # exit status (EX_NOINPUT) where the data asks for what the model cannot answer
_refusing_pickle = [True]  # emptied when the model is loaded: an audit hook cannot be taken away


class OtherQuestionError(Exception):
    """Held-out data that asks for something else than the model answers."""


def main() -> None:
    """Answer the request on standard input; the answers to single items go into a file."""
    from pipelines.tracking.transient import is_transient

    request = json.load(sys.stdin)
    with tempfile.TemporaryDirectory(prefix="bertsmith-proof-") as scratch:
        try:
            package, data = _fetched_package(request, scratch), _fetched_data(request)
        except Exception as error:  # tracker, store and network have no kind in common
            if not is_transient(error):
                raise
            sys.stderr.write(f"{error}\n")
            sys.exit(TRY_AGAIN)
        files = _sealed_files(package, request["digest"])
        unmet = unmet_requirements((package / "requirements.txt").read_text().splitlines())
        if unmet:
            answer: dict[str, Any] = {"unmet": unmet}
        else:
            try:
                answer = {"unmet": [], "files": files, **_reached(request, package, data)}
            except OtherQuestionError as error:
                sys.stderr.write(f"{error}\n")
                sys.exit(OTHER)
    sys.stdout.write(json.dumps(answer) + "\n")


def _fetched_package(request: dict[str, Any], scratch: str) -> Path:
    from pipelines.tracking.sign_in import make_default
    from pipelines.tracking.tracker import server_address

    make_default(server_address(request["tracking_uri"]))
    return Path(mlflow.artifacts.download_artifacts(request["uri"], dst_path=scratch))


def _sealed_files(package: Path, digest: str) -> dict[str, str]:
    """What the files of the package hash to; leaves where they are not those registered."""
    from pipelines.registry.serving.integrity import ChangedPackageError, sealed_files

    for bytecode in list(package.rglob("__pycache__")):  # of this copy; it was never sealed
        shutil.rmtree(bytecode)
    try:
        return sealed_files(package, digest)
    except ChangedPackageError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(CHANGED)


def _fetched_data(request: dict[str, Any]) -> Any:
    """The artifact with the held-out data, its files on this machine."""
    from pipelines.artifacts import ArtifactStore

    kind, fingerprint = request["data_kind"], request["fingerprint"]
    data = ArtifactStore(request["store_url"]).find(kind, fingerprint)
    if data is None:
        raise LookupError(f"the held-out {kind} {fingerprint} is not in the store")
    for name in (*data.names("heldout"), *data.names("probe"), *data.names("task")):
        data.local(name)
    return data


def _reached(request: dict[str, Any], package: Path, data: Any) -> dict[str, Any]:
    """The model's figure, what computed it, and what it is; without network and pickles."""
    import torch

    from pipelines.config.versions import computing_machine

    if request["threads"]:
        torch.set_num_threads(int(request["threads"]))  # sums are split among them
    sys.addaudithook(_refuse_network)
    sys.addaudithook(_refuse_pickle)
    loaded = mlflow.pyfunc.load_model(str(package))
    _refusing_pickle.clear()
    _check_own_code()
    loaded.predict(loaded.input_example)  # as a server calls it
    reaches = {"examples": _of_encoder, "dataset": _of_task}
    reach = reaches.get(request["data_kind"], _response)
    value, answers = reach(loaded, data, request)
    Path(request["answers_file"]).write_text(json.dumps(answers))
    model = loaded.unwrap_python_model().model
    return {
        "value": value,
        "machine": computing_machine(),
        "head": model.head_name,
        "labels": list(getattr(model, "labels", None) or ()),
        "max_tokens": model.config.max_position_embeddings,
    }


def unmet_requirements(declared: list[str]) -> list[str]:
    """The declared requirements that this process does not meet, a phrase each."""
    unmet = []
    for line in declared:
        requirement = Requirement(line)
        try:
            installed = version(requirement.name)
        except PackageNotFoundError:
            installed = "none"
        if installed == "none" or not requirement.specifier.contains(installed, prereleases=True):
            unmet.append(f"{requirement.name} {installed} instead of {requirement.specifier}")
    return unmet


def _refuse_network(event: str, arguments: tuple[Any, ...]) -> None:
    """Everything needed is on this machine by now."""
    if event in ("socket.getaddrinfo", "socket.connect") and not isinstance(arguments[-1], str):
        raise PermissionError(f"a model must run without network, it asked for {arguments}")


def _refuse_pickle(event: str, arguments: tuple[Any, ...]) -> None:
    """While a model is loaded: a pickle runs whatever its writer chose."""
    if _refusing_pickle and event == "pickle.find_class":
        raise PermissionError(f"a model must be loaded without pickles, one asked for {arguments}")


def _of_task(loaded: Any, dataset: Any, request: dict[str, Any]) -> tuple[float, list[Any]]:
    # Imported only now, so that they find the model's own bert_core already there.
    from pipelines.stages.dataset.stage import family_of, read_items
    from pipelines.tasks import Reading

    served = loaded.unwrap_python_model()
    family, heldout = family_of(dataset), read_items(dataset, "heldout")
    for columns in ("takes", "gives"):  # of a user's own task, whose code may have changed
        theirs = getattr(served.model, columns, None)
        if theirs != getattr(family.model, columns, None):
            raise OtherQuestionError(f"they have different columns in {columns}")
    labels = set(getattr(served.model, "labels", None) or ())
    odd = sorted(labels ^ set(heldout.labels))
    if odd and labels:
        raise OtherQuestionError(
            f"they have different labels: {', '.join(odd[:5])} are in only one of them"
        )
    reading = Reading(served.model.config.max_position_embeddings)
    answers = family.answers(served.model, served.tokenizer, heldout, reading)
    return family.figures(answers, heldout)[request["metric"]], answers.values


def _of_encoder(loaded: Any, examples: Any, request: dict[str, Any]) -> tuple[float, list[Any]]:
    from pipelines.stages.examples.batches import ExampleReader
    from pipelines.stages.pretraining.figures import pretraining_figures, sequence_losses

    served, reader = loaded.unwrap_python_model(), ExampleReader(examples, "heldout")
    model, vocabulary = served.model, examples.local("vocab.txt").read_text(encoding="utf-8")
    if vocabulary.split("\n") != served.tokenizer.files()["vocab.txt"].split("\n"):
        raise OtherQuestionError(
            "they have different vocabularies, whose tokens are not the same question"
        )
    if reader.max_tokens > model.config.max_position_embeddings:
        raise OtherQuestionError(
            f"the examples have up to {reader.max_tokens} tokens, of which one of them reads "
            f"{model.config.max_position_embeddings}"
        )
    figures = pretraining_figures(model, reader, request["max_examples"])
    losses = sequence_losses(model, reader, request["max_examples"])
    return figures[request["metric"]], losses.tolist()


def _response(loaded: Any, imported: Any, request: dict[str, Any]) -> tuple[float, list[Any]]:
    """The outputs of an imported model for texts: it has no other figures."""
    from bert_core.inference.probing import probe

    served = loaded.unwrap_python_model()
    texts = json.loads(imported.local("probe.json").read_text(encoding="utf-8"))["texts"]
    response, count = probe(served.model, served.tokenizer, texts)
    return response, [count]


def _check_own_code() -> None:
    import bert_core

    installed = Path(__file__).parents[3] / "bert_core"
    if Path(bert_core.__file__).parent == installed:
        raise ImportError("the loaded model runs with installed code, not with its own")


if __name__ == "__main__":
    main()
