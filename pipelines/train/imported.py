"""Models from elsewhere as artifacts, so that all workers read them from the store."""

import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any, Final

from bert_core.config import EncoderConfig
from bert_core.files import read_json
from bert_core.hugging_face import READING_VERSION, import_model, model_folder
from bert_core.inference.pretrained import PROBES, probe
from bert_core.model.catalogue import Model, count_parameters
from bert_core.model.rows import CODE_FILE
from bert_core.training.state import load_model, read_config, save_model
from bert_core.vocabulary import TOKENIZER_FILES, WordPieceTokenizer
from pipelines.errors import UserError, readable, redacted
from pipelines.stage import IMPORTED, StageContext, send_note
from pipelines.store import Artifact, Built, Draft
from pipelines.store.artifact import fingerprint_of, sha256_of_file
from pipelines.train.existing import find_model_artifact, is_model_folder, missing_encoder
from pipelines.versions import computing_machine

PROBE: Final = "probe/response"  # of texts whose answers verification compares
CAUSAL: Final = (
    "causal, as its config.json says (is_decoder): a token reads itself and what is left of it, "
    "never what is right of it"
)


def existing_encoder(reference: str, context: StageContext) -> Artifact:
    """The encoder that `reference` names: a folder, ours or Hugging Face's, or a fingerprint.

    A folder is copied into the store, named by its bytes. Raises UserError if there is no such
    encoder, or it cannot be read.
    """
    artifact = find_model_artifact(reference, context.store)
    if artifact is not None:
        return artifact
    if not is_model_folder(reference):
        raise missing_encoder(reference, context.store)
    refuse_own_code(Path(reference))
    return import_folder(Path(reference), context, source=reference)


def config_of(encoder: Artifact) -> EncoderConfig:
    """The sizes and options of an encoder in the store."""
    return EncoderConfig.from_dict(read_config(encoder.local_folder())["encoder"])


def refuse_own_code(folder: Path) -> None:
    """Raise UserError for a folder with a model's own code, which loading it would run."""
    if (folder / CODE_FILE).is_file():
        raise UserError(
            f"{folder} carries the code of its model, {CODE_FILE}, which loading it would run; "
            "name the model in the registry or its fingerprint in the store, or read that file and "
            "train a model of your own with it (--task FILE.py)"
        )


def is_ours(folder: Path) -> bool:
    """Whether a folder holds a model in Bertsmith's own format.

    Raises UserError where its config.json cannot be read.
    """
    with readable(folder):
        config = read_json(model_folder(folder) / "config.json")
    return "head" in config and "format" in config


def import_folder(
    folder: Path,
    context: StageContext,
    *,
    source: str,
    head: str | None = None,
    lowercase: bool | None = None,
) -> Artifact:
    """The model in `folder` and its tokenizer as an artifact; `source` is where they came from.

    The artifact is named by the files' bytes and by how they are read: the version of the reading,
    the `head` to keep if one is named, and `lowercase` if the folder does not say. Raises
    UserError, and stores nothing, if they are incomplete.
    """
    options = {"head": head, "lowercase": lowercase}
    settings = {name: value for name, value in options.items() if value is not None}
    with readable(folder):
        files = {name: sha256_of_file(folder / name) for name in _files_of_model(folder)}
    lines = "".join(f"{name} {digest}\n" for name, digest in files.items())
    inputs = {"files": hashlib.sha256(lines.encode()).hexdigest()}
    fingerprint = fingerprint_of(IMPORTED, READING_VERSION, settings, inputs)
    artifact = context.store.find(IMPORTED, fingerprint)
    if artifact is None:
        is_own = is_ours(folder)
        with readable(folder):
            if is_own and head is not None:
                raise ValueError("it is a Bertsmith model, whose heads are kept; leave out --head")
            place = model_folder(folder)
            model = load_model(place) if is_own else import_model(folder, head)
            tokenizer = WordPieceTokenizer.from_directory(place, lowercase=lowercase)
            tokenizer.check_embedding_rows(model.config.vocab_size)
        details = {"source": redacted(source), "source_files": files, "is_ours": is_own}

        def build(draft: Draft) -> Built:
            with tempfile.TemporaryDirectory(prefix="bertsmith-import-") as scratch:
                saved = Path(scratch) / "model"
                save_model(saved, model)
                tokenizer.save(saved, max_tokens=model.config.max_position_embeddings)
                probes = json.dumps({"texts": PROBES}, ensure_ascii=False)
                (saved / "probe.json").write_text(probes)
                names = sorted(file.name for file in saved.iterdir())
                for name in names:
                    draft.write(name, (saved / name).read_bytes())
            return Built(names, {**_statistics(model, tokenizer), **details})

        artifact = context.store.get_or_build(
            IMPORTED, version=READING_VERSION, settings=settings, inputs=inputs, build=build
        )
    if artifact.statistics["causal"]:  # rarely wanted of a BERT
        send_note(context.observe, IMPORTED, f"{redacted(source)} is {CAUSAL}")
    return artifact


def _files_of_model(folder: Path) -> list[str]:
    """Names, below `folder`, of the files that reading the model in it looks at."""
    model = model_folder(folder)
    paths = {
        path
        for path in model.iterdir()
        if path.name in ("config.json", CODE_FILE)
        or path.name in TOKENIZER_FILES
        or path.name.startswith("sentence_bert_config")
        or path.suffix == ".safetensors"
    }
    paths |= {path for path in folder.glob("*_*/config.json") if model.name not in path.parts}
    names = ("modules.json", "config_sentence_transformers.json")
    paths |= {folder / name for name in names if (folder / name).is_file()}
    return sorted(path.relative_to(folder).as_posix() for path in paths)


def _statistics(model: Model, tokenizer: WordPieceTokenizer) -> dict[str, Any]:
    response, num_numbers = probe(model, tokenizer)
    embedding = model.embedding
    return {
        "head": model.head_name,
        "size": tokenizer.vocab_size,
        "rows": model.config.vocab_size,
        "causal": model.config.causal,
        "num_parameters": count_parameters(model),
        "embedding": embedding.to_dict() if embedding is not None else None,
        PROBE: response,
        "probe/numbers": num_numbers,
        "computed_on": computing_machine(),
    }
