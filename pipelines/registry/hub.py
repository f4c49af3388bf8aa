"""Models on the Hugging Face hub: the card that it reads, and the upload of an exported folder."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from bert_core.files import read_json
from pipelines.errors import UserError, first_line, redacted
from pipelines.io.hugging_face import hub_errors
from pipelines.registry.find import KIND_TAG, PROOF_TAG, entries

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion

CARD_FILE: Final = "README.md"
# What the hub calls the tasks of the classes; it has no name for multiple choice.
_PIPELINES: Final = {
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
    "ForPreTraining": "fill-mask",
    "ForMaskedLM": "fill-mask",
    "Model": "feature-extraction",
}
# Sections that are of the registry alone: fingerprints and paths, and how MLflow loads it.
_OF_THE_REGISTRY: Final = ("## Made from", "## Use")
_OF_THE_TASK: Final = (
    *_OF_THE_REGISTRY,
    "A BERT",
    "## Held-out figures",
    "Trained once",
    "The best",
)
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


def write_card(
    folder: Path, version: "ModelVersion", metadata: CardMetadata, repository: str = ""
) -> None:
    """Write the model card of an exported version, with the metadata that the hub reads.

    Its text is the registry's own card, without what holds in the registry alone; an encoder that
    was exported without its task has none of the task's figures. The example opens `repository`,
    or else the folder.
    """
    from huggingface_hub import ModelCardData

    architecture: str = read_json(folder / "config.json")["architectures"][0]
    kind, proof = version.tags.get(KIND_TAG, ""), entries(PROOF_TAG, version.tags)
    is_task = kind != "encoder" and (architecture != "BertModel" or kind == "sentence_embedding")
    metric = proof.get("metric", "") if is_task else ""
    pipeline = _PIPELINES.get(re.sub("^(Mean)?Bert", "", architecture))
    if pipeline == "feature-extraction" and (folder / "modules.json").is_file():
        pipeline = "sentence-similarity"
    is_own_code = architecture.startswith("MeanBert")
    is_onnx = (folder / "model.onnx").is_file()
    library = "onnx" if is_onnx else "transformers"
    if pipeline == "sentence-similarity":
        library = "sentence-transformers"
    data = ModelCardData(
        license=metadata.license or None,
        language=list(metadata.language) or None,
        base_model=metadata.base_model or None,
        datasets=list(metadata.datasets) or None,
        library_name=library,
        pipeline_tag=pipeline,
        tags=[
            "bert",
            "bertsmith",
            *([library] if library == "sentence-transformers" else []),
            *(["custom_code"] if is_own_code and not is_onnx else []),
        ],
        metrics=[metric.removeprefix("eval/")] if metric else None,
    )
    left_out = _OF_THE_REGISTRY if is_task or kind == "encoder" else _OF_THE_TASK
    sections = re.split(r"(?m)^(?=## )", version.description or "")
    kept = [each.strip() for each in sections if not each.startswith(left_out)]
    use = _use(repository or folder.name, architecture, library, is_own_code=is_own_code)
    text = "\n\n".join([f"# {version.name}", *filter(None, kept), use])
    (folder / CARD_FILE).write_text(f"---\n{data}\n---\n\n{text}\n", encoding="utf-8")


def _use(name: str, architecture: str, library: str, *, is_own_code: bool) -> str:
    """How it is opened elsewhere."""
    if library == "sentence-transformers":
        return (
            "## Use\n\n```python\nfrom sentence_transformers import SentenceTransformer\n\n"
            f'vectors = SentenceTransformer("{name}").encode(["a text"])\n```'
        )
    if library == "onnx":
        return "## Use\n\nONNX Runtime opens `model.onnx`, and tokenizers `tokenizer.json`."
    automatic = re.sub("^(Mean)?Bert(Model)?", "AutoModel", architecture)
    trust = ", trust_remote_code=True" if is_own_code else ""
    return (
        f"## Use\n\n```python\nfrom transformers import AutoTokenizer, {automatic}\n\n"
        f'tokenizer = AutoTokenizer.from_pretrained("{name}")\n'
        f'model = {automatic}.from_pretrained("{name}"{trust})\n```'
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
