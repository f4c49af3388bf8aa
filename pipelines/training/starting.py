"""The encoder that a training goes on from, as an artifact: everyone reads it from the store."""

import hashlib
import re
import tempfile
from pathlib import Path
from typing import Final

from bert_core.files.json_files import read_json
from bert_core.hugging_face import import_model
from bert_core.model.catalogue import Model, count_parameters
from bert_core.training.state import load_model, save_model
from bert_core.vocabulary import WordPieceTokenizer
from pipelines.artifacts import Artifact, Built, Draft
from pipelines.artifacts.fingerprint import sha256_of_file
from pipelines.core.errors import UserError
from pipelines.core.redaction import redacted
from pipelines.core.stage import StageContext

IMPORTED: Final = "imported_encoder"
_VERSION: Final = 2
_KINDS: Final = (IMPORTED, "encoder")  # of artifacts that hold an encoder and its tokenizer
_FINGERPRINT: Final = re.compile("[0-9a-f]{32}")
# Architectures whose heads a pretraining may take, as `import_model` reads them off the tensors.
_OF_PRETRAINING: Final = (
    "BertModel", "BertForPreTraining", "BertLMHeadModel", "BertForNextSentencePrediction",
)  # fmt: skip
_TOKENIZER_FILES: Final = ("vocab.txt", "tokenizer.json", "tokenizer_config.json")


def starting_encoder(reference: str, context: StageContext) -> Artifact:
    """The encoder that `reference` names: a folder, ours or Hugging Face's, or a fingerprint.

    What is in a folder is taken into the store, named by its bytes. Raises UserError where there
    is none, or none that can be read.
    """
    if _FINGERPRINT.fullmatch(reference):
        for kind in _KINDS:
            found = context.store.find(kind, reference)
            if found is not None:
                return found
        raise UserError(
            f"an encoder must be a fingerprint in the store {context.store.url}, "
            f"found none with {reference}; see `bertsmith store`"
        )
    if Path(reference).is_dir():
        return take_in(Path(reference), context, source=reference)
    raise UserError(
        "an encoder must be a folder with a model, models:/<name>@<alias> or the fingerprint of "
        f"one in the store, found no such: {reference}"
    )


def take_in(folder: Path, context: StageContext, *, source: str) -> Artifact:
    """The model in `folder` and its tokenizer as an artifact; `source` says whence they came.

    The artifact is named by the files, wherever they lie. Raises UserError where they are not
    whole.
    """
    names = sorted(
        path.name
        for path in folder.iterdir()
        if path.name == "config.json"
        or path.name in _TOKENIZER_FILES
        or path.suffix in (".safetensors", ".bin")
        or path.name.endswith(".index.json")
    )
    digest = hashlib.sha256()
    for name in names:
        digest.update(f"{name} {sha256_of_file(folder / name)}\n".encode())

    def build(draft: Draft) -> Built:
        model, tokenizer = _read(folder)
        with tempfile.TemporaryDirectory(prefix="bertsmith-encoder-") as scratch:
            saved = Path(scratch) / "model"
            save_model(saved, model)
            tokenizer.save(saved, max_tokens=model.config.max_position_embeddings)
            files = sorted(saved.iterdir())
            for file in files:
                with draft.file(file.name) as target:
                    target.path.write_bytes(file.read_bytes())
        statistics = {
            "source": redacted(source),
            "head": model.head_name,
            "size": tokenizer.vocab_size,
            "num_parameters": count_parameters(model),
        }
        return Built([file.name for file in files], statistics)

    return context.store.get_or_build(
        IMPORTED,
        version=_VERSION,
        settings={},
        inputs={"files": digest.hexdigest()},
        build=build,
    )


def _read(folder: Path) -> tuple[Model, WordPieceTokenizer]:
    try:
        is_ours = "head" in read_json(folder / "config.json")
        model = load_model(folder) if is_ours else import_model(folder, _head_to_keep(folder))
        return model, WordPieceTokenizer.from_directory(folder)
    except (ValueError, OSError) as error:
        said = " ".join(str(error).split())
        raise UserError(
            f"{folder} must hold a model and its tokenizer that can be read, but {said}"
        ) from error


def _head_to_keep(folder: Path) -> str | None:
    """The head that a pretraining takes of a published checkpoint; None: what it holds.

    Older checkpoints of BertForMaskedLM kept a pooler that nothing reads, and of a model for
    another task the encoder alone is wanted, whatever its head is.
    """
    architecture = (read_json(folder / "config.json").get("architectures") or [""])[0]
    if architecture == "BertForMaskedLM":
        return "pretraining"
    return None if not architecture or architecture in _OF_PRETRAINING else "encoder"
