"""A model as MLflow keeps it: weights, tokenizer, serving code, signature and an example."""

import shutil
import tempfile
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, NamedTuple

import mlflow.pyfunc
import pandas as pd
from mlflow.models import ModelSignature
from mlflow.types import ColSpec, DataType, Schema, TensorSpec
from mlflow.types.schema import Array

import bert_core
from bert_core.training.state import CONFIG_FILE, WEIGHTS_FILE, read_config
from pipelines.artifacts import Artifact
from pipelines.registry import serving
from pipelines.registry.serving import integrity

_TOKENIZER_FILES = ("vocab.txt", "tokenizer.json", "tokenizer_config.json")
_REQUIREMENTS = ("torch", "numpy", "safetensors", "tokenizers", "pandas", "mlflow")
_TEXT = "Returns the sum of the elements along the given axis."
_ONE_TEXT: Final[tuple[list[ColSpec | TensorSpec], dict[str, list[Any]]]] = (
    [ColSpec(DataType.string, "text"), ColSpec(DataType.string, "second_text", required=False)],
    {"text": [_TEXT]},
)
_STRINGS, _NUMBER = Array(DataType.string), DataType.double


class _Served(NamedTuple):
    """What a served model is asked and answers: its columns, and a row that it can answer."""

    inputs: list[ColSpec | TensorSpec]
    example: dict[str, list[Any]]
    outputs: list[ColSpec | TensorSpec]


_SERVED: Final = {  # by the head of the model
    "encoder": _Served(
        [ColSpec(DataType.string, "text")], {"text": [_TEXT]},
        [ColSpec(Array(_NUMBER), "embedding")],
    ),
    "sequence_classification": _Served(
        *_ONE_TEXT, [ColSpec(DataType.string, "label"), ColSpec(_NUMBER, "probability")]
    ),
    "multi_label_classification": _Served(
        *_ONE_TEXT, [ColSpec(_STRINGS, "labels"), ColSpec(Array(_NUMBER), "probabilities")]
    ),
    "regression": _Served(*_ONE_TEXT, [ColSpec(_NUMBER, "value")]),
    "token_classification": _Served(
        [ColSpec(DataType.string, "text", required=False),
         ColSpec(_STRINGS, "words", required=False)],
        {"text": [_TEXT]},
        [ColSpec(_STRINGS, "words"), ColSpec(_STRINGS, "tags")],
    ),
    "multiple_choice": _Served(
        [ColSpec(DataType.string, "text"), ColSpec(_STRINGS, "choices")],
        {"text": [_TEXT], "choices": [["Along each axis.", "Along the first axis."]]},
        [ColSpec(DataType.long, "choice"), ColSpec(_NUMBER, "probability")],
    ),
    "span_prediction": _Served(
        [ColSpec(DataType.string, "question"), ColSpec(DataType.string, "context")],
        {"question": ["What does it return?"], "context": [_TEXT]},
        [ColSpec(DataType.string, "answer"), ColSpec(DataType.long, "begin"),
         ColSpec(_NUMBER, "null_lead")],
    ),
    "sentence_embedding": _Served(*_ONE_TEXT, [ColSpec(Array(_NUMBER), "embedding")]),
}  # fmt: skip


def declared_requirements() -> list[str]:
    """What a package made here says it needs, as pip reads it."""
    return [f"{name}=={_public(version(name))}" for name in _REQUIREMENTS]


def save_model_package(
    target: Path, kind: str, artifact: Artifact, metadata: Mapping[str, str]
) -> str:
    """Write the MLflow model of an `encoder`, or of a task's model, into the new folder `target`.

    It carries `bert_core` as its own code, so that loading it needs no Bertsmith installation, and
    the list of what its files hash to, whose digest is returned.
    """
    with tempfile.TemporaryDirectory(prefix="bertsmith-package-") as scratch:
        model = Path(scratch) / "model"
        _copy_model_files(model, artifact)
        # Whatever heads it was pretrained with, an encoder is asked for embeddings.
        served = _SERVED["encoder" if kind == "encoder" else read_config(model)["head"]]
        mlflow.pyfunc.save_model(
            str(target),
            python_model=str(Path(serving.__file__).parent / "served_model.py"),
            artifacts={"model": str(model)},
            code_paths=[_clean_copy(Path(bert_core.__file__).parent, Path(scratch))],
            signature=ModelSignature(Schema(served.inputs), Schema(served.outputs)),
            input_example=pd.DataFrame(served.example),
            pip_requirements=declared_requirements(),
            metadata=dict(metadata),
        )
    shutil.copyfile(integrity.__file__, target / Path(integrity.__file__).name)
    return integrity.seal(target)


def _copy_model_files(folder: Path, artifact: Artifact) -> None:
    folder.mkdir()
    for name in (WEIGHTS_FILE, CONFIG_FILE, *_TOKENIZER_FILES):
        shutil.copyfile(artifact.local(name), folder / name)


def _clean_copy(package: Path, scratch: Path) -> str:
    """The package's sources without caches, so that equal code makes equal packages."""
    target = scratch / package.name
    shutil.copytree(package, target, ignore=shutil.ignore_patterns("__pycache__"))
    return str(target)


def _public(full_version: str) -> str:
    """`2.13.0+cpu` names a build that not every index has; `2.13.0` is what is needed."""
    return full_version.partition("+")[0]
