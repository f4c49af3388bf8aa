"""A registered model as files: packed for MLflow, opened again, and verified on the way.

MLflow takes two seconds to import, so it is imported where it is asked.
"""

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata as installed
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlsplit

import bert_core
from bert_core.inference import tables
from bert_core.inference.confidence import CONFIDENCE_FILE, least_probability
from bert_core.inference.tables import Question
from bert_core.model.catalogue import EncoderModel, Model, described
from bert_core.model.rows import CODE_FILE
from bert_core.model.task_models import OneOfClasses
from bert_core.training.state import CONFIG_FILE, WEIGHTS_FILE, load_model, model_class_in
from bert_core.vocabulary import SAVED_FILES, WordPieceTokenizer
from pipelines.errors import UserError, readable
from pipelines.registry import seal
from pipelines.registry.find import (
    DIGEST_TAG,
    REGISTERED,
    digest_of,
    find_model,
    is_folder,
    uri_of,
)
from pipelines.stage import StageContext
from pipelines.store import Artifact
from pipelines.store.artifact import is_fingerprint
from pipelines.train.imported import (
    existing_encoder,
    import_folder,
    is_ours,
    refuse_own_code,
)

if TYPE_CHECKING:
    from mlflow.entities import LoggedModel
    from mlflow.models import ModelSignature

    from pipelines.tracking.tracker import Tracker

OpenedModel = tuple[Model, WordPieceTokenizer]


class Confidence(NamedTuple):
    """How sure an answer must be: a probability, or the precision that it gave; 0: any."""

    min_confidence: float = 0.0
    min_precision: float = 0.0

    def least(self, folder: Path) -> float:
        """The probability, by the table of the model in `folder`; raises ValueError without one."""
        if not self.min_precision:
            return self.min_confidence
        return least_probability(folder, self.min_precision)


ANY: Final = Confidence()
_REQUIREMENTS = ("torch", "numpy", "safetensors", "tokenizers", "pandas", "mlflow")


def question_of(kind: str, artifact: Artifact) -> Question:
    """What the model is asked; an encoder, whatever heads it has, is asked for embeddings."""
    if kind == "encoder":
        return tables.question_of(EncoderModel)
    return tables.question_of(model_class_in(artifact.local_folder()))


def declared_requirements() -> list[str]:
    """The requirements of a package made here, as pip reads them.

    `2.13.0+cpu` names a build that not every index has; `2.13.0` is what is needed.
    """
    return [f"{name}=={installed.version(name).partition('+')[0]}" for name in _REQUIREMENTS]


def log_package(
    kind: str,
    artifact: Artifact,
    run_id: str,
    tags: Mapping[str, str],
    tracker: "Tracker",
    evaluation: Artifact | None = None,
) -> "LoggedModel":
    """A new package in MLflow, with its digest as a tag; it has the evaluation's precisions."""
    from pipelines.tracking.tracker import time_for_files

    client = tracker.client()
    logged = client.create_logged_model(
        tracker.experiment_id(), name=kind, source_run_id=run_id, tags=dict(tags), model_type=kind
    )
    with tempfile.TemporaryDirectory(prefix="bertsmith-model-") as scratch:
        package = Path(scratch) / "package"
        digest = _save(package, kind, artifact, evaluation, metadata=tags)
        with time_for_files():
            client.log_model_artifacts(logged.model_id, str(package))
    client.set_logged_model_tags(logged.model_id, {DIGEST_TAG: digest})
    return client.finalize_logged_model(logged.model_id, "READY")


def _save(
    target: Path,
    kind: str,
    artifact: Artifact,
    evaluation: Artifact | None,
    metadata: Mapping[str, str],
) -> str:
    """Write the MLflow model into the new folder `target`; returns the digest of its files.

    It carries `bert_core` as its own code, so that loading it needs no Bertsmith installation.
    """
    import mlflow.pyfunc
    import pandas as pd

    question = question_of(kind, artifact)
    with tempfile.TemporaryDirectory(prefix="bertsmith-package-") as scratch:
        model, code = Path(scratch) / "model", Path(scratch) / "bert_core"
        model.mkdir()
        for name in (WEIGHTS_FILE, CONFIG_FILE, *SAVED_FILES, *artifact.names(CODE_FILE)):
            shutil.copyfile(artifact.local(name), model / name)
        if evaluation is not None:
            for name in evaluation.names(CONFIDENCE_FILE):
                shutil.copyfile(evaluation.local(name), model / name)
        # Without caches, so that equal code makes equal packages.
        sources = Path(bert_core.__file__).parent
        shutil.copytree(sources, code, ignore=shutil.ignore_patterns("__pycache__"))
        mlflow.pyfunc.save_model(
            str(target),
            python_model=str(Path(seal.__file__).with_name("served_model.py")),
            artifacts={"model": str(model)},
            code_paths=[str(code)],
            signature=signature_of(question),
            input_example=pd.DataFrame({name: [cell] for name, cell in question.example.items()}),
            pip_requirements=declared_requirements(),
            metadata=dict(metadata),
        )
    shutil.copyfile(seal.__file__, target / Path(seal.__file__).name)
    return seal.seal(target)


def signature_of(question: Question) -> "ModelSignature":
    """What the model is asked and answers, in MLflow's words."""
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema
    from mlflow.types.schema import Array, Object, Property

    types: dict[Any, DataType | Array] = {
        str: DataType.string, int: DataType.long, float: DataType.double,
        list[str]: Array(DataType.string), list[float]: Array(DataType.double),
        list[dict]: Array(Object([
            Property("start", DataType.long), Property("end", DataType.long),
            Property("label", DataType.string),
        ])),
    }  # fmt: skip
    asked = [
        ColSpec(
            types[str if isinstance(value, str) else list[str]], name,
            required=not question.in_place or name != question.columns[0],
        )
        for name, value in question.example.items()
    ]  # fmt: skip
    asked += [
        ColSpec(types[list[str] if name == question.in_place else str], name, required=False)
        for name in question.optional
    ]
    answered = [ColSpec(types[kind], name) for name, kind in question.answers.items()]
    # On every model: MLflow drops what it does not know, and a model without one probability is to
    # refuse these.
    params = [ParamSpec(name, DataType.double, 0.0) for name in Confidence._fields]
    return ModelSignature(Schema([*asked]), Schema([*answered]), ParamSchema(params))


def local_model(reference: str, context: StageContext) -> str:
    """`reference` as `located` takes it: a name in the registry, or a folder of ours.

    A fingerprint becomes the folder of its artifact, and a published BERT is taken into the store
    first. Raises UserError for a fingerprint that the store has not, and for a folder that holds
    no model.
    """
    if is_folder(reference):
        refuse_own_code(Path(reference))
        if is_ours(Path(reference)):
            return reference
    elif not is_fingerprint(reference):
        return reference
    return str(existing_encoder(reference, context).local_folder())


def opened(folder: Path, confidence: Confidence = ANY) -> OpenedModel:
    """The model in `folder` and its tokenizer; UserError, naming it, where it holds none whole.

    It answers what is sure enough. Raises UserError where it cannot tell how sure it is.
    """
    with readable(folder):
        model, tokenizer = load_model(folder), WordPieceTokenizer.from_directory(folder)
        tokenizer.check_embedding_rows(model.config.vocab_size)
        model = model.pack()
    if confidence != ANY:
        if not isinstance(model, OneOfClasses) or not tables.gives_one_probability(model):
            raise UserError(
                f"{described(model.head_name)} gives no one probability a row; leave out "
                "min_confidence and min_precision"
            )
        try:
            model.min_confidence = confidence.least(folder)
        except ValueError as error:
            raise UserError(str(error)) from error
    return model, tokenizer


@contextmanager
def located(tracker: "Tracker", reference: str) -> Iterator[Path]:
    """A local folder with the model files that `reference` names, for as long as it is used.

    `reference` is a folder, or names a version as for `find_model`. Raises UserError where there is
    none and where the bytes of a version are not those that were registered, MlflowException where
    the tracker does not answer.
    """
    if is_folder(reference):
        yield Path(reference)
        return
    import mlflow.artifacts

    from pipelines.tracking.tracker import time_for_files

    client = tracker.client()
    version = find_model(client, reference)
    digest = digest_of(version)
    address = client.get_model_version_download_uri(version.name, str(version.version))
    with tempfile.TemporaryDirectory(prefix="bertsmith-model-") as scratch, time_for_files():
        package = mlflow.artifacts.download_artifacts(
            uri_of(version),
            # Local files are used in place.
            dst_path=None if urlsplit(address).scheme in ("", "file") else scratch,
            tracking_uri=tracker.uri,
        )
        with readable(Path(package)):
            seal.sealed_files(Path(package), digest)
        yield Path(package) / "artifacts" / "model"


def open_model(tracker: "Tracker", reference: str, confidence: Confidence = ANY) -> OpenedModel:
    """The model that `reference` names, and its tokenizer: see `located` and `opened`."""
    with located(tracker, reference) as folder:
        return opened(folder, confidence)


def versioned(tracker: "Tracker", reference: str) -> str:
    """models:/name/version of the version that `reference` names; a folder stays what it is.

    Without models:/ a folder of that name, which nobody asked for, would be taken next.
    """
    if is_folder(reference):
        return reference
    return uri_of(find_model(tracker.client(), reference))


def resolved_encoder(reference: str, tracker: "Tracker", context: StageContext) -> Artifact:
    """The encoder that `reference` names: models:/name@alias, a folder, or a fingerprint.

    A registered one is taken into the store as it is now: when its alias moves, the same recipe
    names another one. Raises UserError where there is none.
    """
    if not reference.startswith(REGISTERED):
        return existing_encoder(reference, context)
    with located(tracker, reference) as folder:
        return import_folder(folder, context, source=reference)
