"""From a folder, or what stands for one, to the model in memory; nothing here asks a tracker."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bert_core.model.catalogue import Model
from bert_core.training.state import load_model
from bert_core.vocabulary import WordPieceTokenizer
from pipelines.artifacts.layout import is_fingerprint
from pipelines.core.errors import UserError
from pipelines.core.stage import StageContext
from pipelines.registry.lookups.references import is_folder
from pipelines.training.starting import find_model_artifact, is_ours, take_in

OpenedModel = tuple[Model, WordPieceTokenizer]


def local_model(reference: str, context: StageContext) -> str:
    """`reference` as `opening.located` takes it: a name in the registry, or a folder of ours.

    A fingerprint becomes the folder of its artifact, and a published BERT is taken into the store
    first. Raises UserError for a fingerprint that the store has not, and for a
    folder that holds no model.
    """
    if is_fingerprint(reference):
        found = find_model_artifact(reference, context)
        if found is None:
            raise UserError(
                f"a model must be a fingerprint in the store {context.store.url}, found none with "
                f"{reference}; see `bertsmith store`"
            )
        return str(found.local_folder())
    if is_folder(reference) and not is_ours(Path(reference)):
        return str(take_in(Path(reference), context, source=reference).local_folder())
    return reference


def opened(folder: Path) -> OpenedModel:
    """The model in `folder` and its tokenizer; UserError, naming it, where it holds none whole."""
    with explained(folder):
        model, tokenizer = load_model(folder), WordPieceTokenizer.from_directory(folder)
        tokenizer.check_embedding_rows(model.config.vocab_size)
        return model, tokenizer


@contextmanager
def explained(folder: Path) -> Iterator[None]:
    """What is wrong with the files of a model in `folder` becomes one sentence that names it."""
    try:
        yield
    except UserError:
        raise
    except (ValueError, OSError) as error:
        said = " ".join(str(error).split())
        if str(folder) not in said:
            said = f"{folder} must hold a model that can be read, but {said}"
        raise UserError(said) from error
