"""Models in and out: Hugging Face BERT directories, ONNX, vocabularies and our own folders."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import yaml

from bert_core.files import publish
from bert_core.hugging_face import export_model, reads_mean
from bert_core.inference.pretrained import PROBES
from bert_core.inference.texts import BATCH_TOKENS, encode_texts
from bert_core.model.catalogue import Model, count_parameters, described
from bert_core.onnx import MODEL_FILE, OnnxModel, write_onnx_folder
from bert_core.training.state import load_model
from bert_core.vocabulary import WordPieceTokenizer
from pipelines.errors import UserError
from pipelines.io.hugging_face import FROM_THE_HUB
from pipelines.recipes.recipe import RegistrationSettings
from pipelines.registry.find import find_model, is_folder, version_with_alias
from pipelines.registry.hub import CardMetadata, write_card
from pipelines.registry.package import open_model
from pipelines.registry.promote import decide_promotion, move_alias
from pipelines.registry.prove import verify
from pipelines.registry.register import RegisteredModel, Submission, register
from pipelines.stage import IMPORTED, StageContext
from pipelines.stages.vocabulary.stage import import_vocabulary
from pipelines.store import Artifact
from pipelines.tasks import family_of_model
from pipelines.tracking.tracker import Tracker
from pipelines.train.imported import import_folder, refuse_own_code

# Of the model's largest output, or of 1 where that is less: float32 sums in another order.
MOST_DIFFERENT: Final = 1e-4
_ONNX_LIBRARIES: Final = ("onnx", "onnxscript", "onnxruntime")


def is_vocabulary(path: Path | str) -> bool:
    """Whether `path` is a vocab.txt, or a folder with a tokenizer and no model."""
    path = Path(path)
    if not path.is_dir():
        return path.is_file()
    names = {each.name for each in path.iterdir()}
    has_weights = any(name.endswith((".safetensors", ".bin", ".index.json")) for name in names)
    is_model = "config.json" in names or "modules.json" in names or has_weights
    return bool(names & {"vocab.txt", "tokenizer.json"}) and not is_model


def import_path(
    path: Path | str,
    context: StageContext,
    *,
    head: str | None = None,
    lowercase: bool | None = None,
) -> Artifact:
    """What is at `path` as an artifact of the store: a model with its tokenizer, or a vocabulary.

    Raises UserError, and leaves nothing behind, where files are missing or broken, or another
    architecture's.
    """
    if not str(path).strip():
        raise UserError("name the folder or the vocab.txt to import")
    path = Path(path)
    if is_vocabulary(path):
        if head is not None:
            raise UserError(f"{path} holds a vocabulary and no model with the head {head}")
        return import_vocabulary(path, context, lowercase=lowercase)
    if not path.is_dir():
        raise UserError(
            f"there is neither a model's folder nor a vocab.txt at {path}; {FROM_THE_HUB}"
        )
    refuse_own_code(path)
    return import_folder(path, context, source=str(path), head=head, lowercase=lowercase)


def register_import(
    artifact: Artifact, name: str, context: StageContext, say: Callable[[str], None]
) -> RegisteredModel:
    """Register the imported model as a version of `name`, and prove it; `say` gets each step.

    It repeats its response to the texts that lie with it, in a process of its own. Where the name
    has no champion it becomes that, else it stays a candidate. Raises UserError for a head that no
    registered model has, VerificationError where it does not repeat its response.
    """
    assert artifact.kind == IMPORTED and context.tracker is not None
    tracker, names = context.tracker, RegistrationSettings()
    say(f"registering it as {name}")
    imported = {
        "source": artifact.statistics["source"],
        "files": artifact.statistics["source_files"],
        **artifact.manifest.settings,
    }
    submission = Submission(
        kind=_kind_of(artifact), name=name, alias=names.candidate_alias, artifact=artifact,
        lineage={IMPORTED: artifact},
        recipe_yaml=yaml.safe_dump({"imported": imported}, sort_keys=False, allow_unicode=True),
    )  # fmt: skip
    model = register(submission, tracker)
    if not model.is_verified:
        say(f"loading {model.uri} in a fresh process, to compare its answers")
        verify(model, artifact, context.store.url, tracker)
    if version_with_alias(tracker.client(), name, names.alias) is None:
        reason = "imported by a person, and the name had no champion"
        decision = decide_promotion(tracker, name, str(model.version), names.alias, reason)
        if decision.previous_version is None:
            move_alias(tracker, decision)
    return model


def _kind_of(artifact: Artifact) -> str:
    head = artifact.statistics["head"]
    if head in ("encoder", "pretraining"):
        return "encoder"
    kind = family_of_model(load_model(artifact.local_folder()))
    if kind is None:
        raise UserError(
            f"a {head} model cannot be registered, because it answers no table; import it without "
            "--name, or keep its encoder alone with --head encoder"
        )
    return kind


def export_version(
    tracker: Tracker,
    reference: str,
    target: Path,
    pooling: str | None,
    *,
    as_onnx: bool = False,
    metadata: CardMetadata | None = None,
    repository: str = "",
) -> str:
    """Write the model that `reference` names as the new folder `target`; says what it wrote.

    It is for `transformers`, or for ONNX Runtime. With `pooling` it is an encoder alone, which
    sentence-transformers opens, too. A registered model's card lies beside it, with `metadata`.
    Raises UserError where `reference` names no model, and where `target` is a folder with something
    in it or cannot be written.
    """
    if as_onnx and not all(map(find_spec, _ONNX_LIBRARIES)):
        raise UserError(f"this needs {', '.join(_ONNX_LIBRARIES)}: pip install 'bertsmith[onnx]'")
    if as_onnx and pooling is not None:
        raise UserError("--pooling is for sentence-transformers; leave --format onnx out")
    model, tokenizer = open_model(tracker, reference)
    try:
        written = f"{described(model.head_name)} with {count_parameters(model):,} parameters"
        if as_onnx:
            written += f"; {_export_onnx(model, tokenizer, target)}"
        else:
            export_model(target, model, tokenizer, pooling=pooling)
        if not is_folder(reference):
            version = find_model(tracker.client(), reference)
            write_card(target, version, metadata or CardMetadata(), repository)
    except ValueError as error:
        raise UserError(str(error)) from error
    except OSError as error:
        raise UserError(
            f"{target} cannot be written ({error.strerror or error}); choose another folder"
        ) from error
    if not as_onnx and pooling is None and reads_mean(model):
        return (
            f"{written}; its head reads the mean of all tokens, by code in the folder: Auto "
            f"classes open it with trust_remote_code=True, and SentenceTransformer({str(target)!r})"
            ".encode(texts) gives its logits"
        )
    return written


def _export_onnx(model: Model, tokenizer: WordPieceTokenizer, target: Path) -> str:
    """Write the folder, and say how ONNX Runtime's answers to some texts compare with the model's.

    Raises ValueError, and leaves nothing behind, where it gives other values.
    """
    largest = []

    def write(draft: Path) -> None:
        write_onnx_folder(draft, model, tokenizer)
        written = WordPieceTokenizer.from_directory(draft)  # the tokenizer that the folder has
        texts = encode_texts(written, PROBES, model.config.max_position_embeddings)
        difference, magnitude = OnnxModel(draft / MODEL_FILE, model).compare(
            tokens for _, tokens in texts.batches(BATCH_TOKENS)
        )
        largest.append(f"{difference:.2g} of values up to {magnitude:.3g}")
        if difference > MOST_DIFFERENT * max(1.0, magnitude):
            raise ValueError(
                "ONNX Runtime computes other values than the model: the largest difference is "
                f"{largest[0]}; nothing was written"
            )

    publish(target, write)
    return f"ONNX Runtime answers like the model: the largest difference is {largest[0]}"
