"""Models in and out: Hugging Face BERT directories and our own folders."""

from dataclasses import dataclass
from pathlib import Path

from bert_core.hugging_face import export_model, import_model
from bert_core.model.catalogue import count_parameters
from bert_core.training.state import save_model
from bert_core.vocabulary import WordPieceTokenizer
from pipelines.core.errors import UserError
from pipelines.core.tracking.tracker import Tracker
from pipelines.registry.opening import explained, open_model


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchanged:
    """A model that was brought in or out."""

    folder: Path
    head: str
    num_parameters: int


def bring_in(directory: Path, target: Path, head: str | None = None) -> Exchanged:
    """Turn the Hugging Face BERT directory `directory` into one of our model folders, `target`.

    Raises UserError where a tensor is missing or unexpected, listing them, or where the directory
    is not a BERT's.
    """
    if not directory.is_dir():
        raise UserError(
            f"a model to import must be a folder with config.json, weights and a vocabulary, "
            f"found no folder at {directory}"
        )
    with explained(directory):
        model = import_model(directory, head)
        tokenizer = WordPieceTokenizer.from_directory(directory)
    try:
        save_model(target, model)
    except ValueError as error:
        raise UserError(str(error)) from error
    tokenizer.save(target)
    return Exchanged(folder=target, head=model.head_name, num_parameters=count_parameters(model))


def take_out(tracker: Tracker, reference: str, target: Path, pooling: str | None) -> Exchanged:
    """Write the model that `reference` names as a directory that `transformers` opens.

    With `pooling` ("mean" or "cls") sentence-transformers opens it, too, as an encoder. Raises
    UserError where `reference` names no model, and where `target` is a folder with something in
    it or cannot be written.
    """
    model, tokenizer = open_model(tracker, reference)
    try:
        export_model(target, model, tokenizer, pooling=pooling)
    except ValueError as error:
        raise UserError(str(error)) from error
    except OSError as error:
        raise UserError(
            f"{target} must be a new folder where this user may write, but it could not be "
            f"written ({error.strerror or error}); choose another"
        ) from error
    return Exchanged(folder=target, head=model.head_name, num_parameters=count_parameters(model))
