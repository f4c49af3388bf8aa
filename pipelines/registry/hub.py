"""Models on the Hugging Face hub: the card that it reads, and the upload of an exported folder."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pipelines.errors import UserError, first_line, redacted
from pipelines.io.hugging_face import hub_errors
from pipelines.registry.find import KIND_TAG, PROOF_TAG, entries

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion

CARD_FILE: Final = "README.md"
# What the hub calls the tasks; it has no name for multiple choice.
_PIPELINES: Final = {
    "classification": "text-classification",
    "multi_label": "text-classification",
    "regression": "text-classification",
    "tagging": "token-classification",
    "question_answering": "question-answering",
    "sentence_embedding": "sentence-similarity",
    "encoder": "fill-mask",
}
# Sections that are of the registry alone: fingerprints and paths, and how MLflow loads it.
_OF_THE_REGISTRY: Final = ("## Made from", "## Use")
# What an export writes: of an earlier one in the same repository nothing may stay.
_WRITTEN: Final = (
    "config.json", "model.safetensors", "model.onnx", "modeling_mean_bert.py", "vocab.txt",
    "tokenizer.json", "tokenizer_config.json", "modules.json", "sentence_bert_config.json",
    "1_Pooling/*", "2_Dense/*", "2_Normalize/*", "3_Normalize/*",
)  # fmt: skip


class CardMetadata(NamedTuple):
    """What a person says of a model for the hub; empty: nothing."""

    license: str = ""  # such as apache-2.0
    language: tuple[str, ...] = ()  # such as de
    base_model: str = ""  # on the hub, that it was made from
    datasets: tuple[str, ...] = ()  # on the hub, that it was trained on


def write_card(folder: Path, version: "ModelVersion", metadata: CardMetadata) -> None:
    """Write the model card of an exported version, with the metadata that the hub reads.

    Its text is the registry's own card, without what holds in the registry alone.
    """
    from huggingface_hub import EvalResult, ModelCardData

    kind, proof = version.tags.get(KIND_TAG, ""), entries(PROOF_TAG, version.tags)
    metric = proof.get("metric", "").removeprefix("eval/")
    pipeline = _PIPELINES.get(kind)
    results = [
        EvalResult(
            task_type=pipeline,
            dataset_type=each,
            dataset_name=each,
            metric_type=metric,
            metric_value=float(proof["reproduced"]),
        )
        for each in metadata.datasets[:1]
        if pipeline and metric and kind != "encoder"
    ]
    is_own_code = any(folder.glob("modeling_*.py"))
    is_onnx = any(folder.glob("*.onnx"))
    data = ModelCardData(
        **_without_nothing(
            license=metadata.license,
            language=list(metadata.language),
            base_model=metadata.base_model,
            datasets=list(metadata.datasets),
        ),
        library_name="onnx" if is_onnx else "transformers",
        pipeline_tag=pipeline,
        tags=["bert", "bertsmith", *(["custom_code"] if is_own_code else [])],
        metrics=[metric] if metric and kind != "encoder" else None,
        model_name=version.name,
        eval_results=results or None,
    )
    sections = re.split(r"(?m)^(?=## )", version.description or "")
    kept = [each.strip() for each in sections if not each.startswith(_OF_THE_REGISTRY)]
    text = "\n\n".join([f"# {version.name}", *filter(None, kept), _use(folder, is_own_code)])
    (folder / CARD_FILE).write_text(f"---\n{data}\n---\n\n{text}\n", encoding="utf-8")


def _without_nothing(**values: Any) -> Mapping[str, Any]:
    return {name: value for name, value in values.items() if value}


def _use(folder: Path, is_own_code: bool) -> str:
    """How it is opened elsewhere."""
    if any(folder.glob("*.onnx")):
        return (
            "## Use\n\nOpen `model.onnx` with ONNX Runtime, and `tokenizer.json` with tokenizers."
        )
    from bert_core.files import read_json

    architecture = read_json(folder / "config.json")["architectures"][0]
    automatic = re.sub("^(Mean)?Bert(Model)?", "AutoModel", architecture)
    trust = ", trust_remote_code=True" if is_own_code else ""
    return (
        "## Use\n\n```python\nfrom transformers import AutoTokenizer, "
        f'{automatic}\n\nname = "…"  # of this repository\n'
        "tokenizer = AutoTokenizer.from_pretrained(name)\n"
        f"model = {automatic}.from_pretrained(name{trust})\n```"
    )


def check_repository(repository: str) -> None:
    """Raise UserError for what is no `owner/name` on the hub."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(repository)
    except HFValidationError as error:
        raise UserError(f"--push: {first_line(error)}") from error
    if "/" not in repository:
        raise UserError(f"--push must be owner/name, found {repository!r}")


def push(folder: Path, repository: str, *, is_private: bool) -> str:
    """Upload an exported folder as one commit of a model repository; returns its address.

    A repository that is not there is made. Files that an earlier export wrote and this one did not
    are removed; all others stay. Raises UserError where the hub cannot be reached or refuses.
    """
    from huggingface_hub import HfApi

    try:
        api = HfApi()
        address = api.create_repo(repository, private=is_private or None, exist_ok=True)
        api.upload_folder(
            repo_id=repository,
            folder_path=folder,
            delete_patterns=list(_WRITTEN),
            commit_message="Export of bertsmith",
        )
    except hub_errors() as error:
        raise UserError(
            f"{repository} could not be pushed ({first_line(error)}); log in with a token that may "
            "write (hf auth login, or HF_TOKEN), and check the name"
        ) from error
    except ValueError as error:  # the hub refuses the card
        reason = " ".join(redacted(str(error)).split())
        raise UserError(f"the hub refuses the card: {reason}") from error
    return str(address)
