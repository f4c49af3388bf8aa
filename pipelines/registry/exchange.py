"""Models in and out: Hugging Face BERT directories, vocabularies and our own folders."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from bert_core.hugging_face import export_model, reads_mean
from bert_core.model.catalogue import count_parameters, described
from bert_core.training.state import load_model
from pipelines.errors import UserError
from pipelines.io.hugging_face import FROM_THE_HUB
from pipelines.recipes.recipe import RegistrationSettings
from pipelines.registry.find import version_with_alias
from pipelines.registry.opening import open_model
from pipelines.registry.promote import move_alias, promotion_by_choice
from pipelines.registry.prove import Proof, Verification, verify
from pipelines.registry.register import RegisteredModel, Submission, register
from pipelines.stage import StageContext
from pipelines.stages.vocabulary.stage import import_vocabulary
from pipelines.store import Artifact
from pipelines.tasks import family_of_model
from pipelines.tracking.tracker import Tracker
from pipelines.train.imported_models import IMPORTED, import_folder, refuse_own_code


def is_vocabulary(path: Path | str) -> bool:
    """Whether `path` is a vocab.txt, or a folder with a tokenizer and no model."""
    path = Path(path)
    return path.is_file() or (path.is_dir() and _holds_a_tokenizer_alone(path))


def import_path(
    path: Path | str,
    context: StageContext,
    *,
    head: str | None = None,
    lowercase: bool | None = None,
) -> Artifact:
    """What is at `path` as an artifact of the store: a model with its tokenizer, or a vocabulary.

    A vocabulary is a vocab.txt or a folder with a tokenizer and no model. Raises UserError, and
    leaves nothing behind, where files are missing or broken, or another architecture's.
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


def _holds_a_tokenizer_alone(folder: Path) -> bool:
    names = {path.name for path in folder.iterdir()}
    has_weights = any(name.endswith((".safetensors", ".bin", ".index.json")) for name in names)
    is_model = "config.json" in names or "modules.json" in names or has_weights
    return bool(names & {"vocab.txt", "tokenizer.json"}) and not is_model


@contextmanager
def writing_to(target: Path) -> Iterator[None]:
    """A block that writes the folder `target`: whatever is wrong with that is a UserError."""
    try:
        yield
    except ValueError as error:
        raise UserError(str(error)) from error
    except OSError as error:
        raise UserError(
            f"{target} cannot be written ({error.strerror or error}); choose another folder"
        ) from error


def export_version(tracker: Tracker, reference: str, target: Path, pooling: str | None) -> str:
    """Write the model that `reference` names for `transformers` as `target`; says what it wrote.

    With `pooling` sentence-transformers opens it, too, as an encoder; without, where the model says
    itself how it makes vectors. Raises UserError where `reference` names no model, and where
    `target` is a folder with something in it or cannot be written.
    """
    model, tokenizer = open_model(tracker, reference)
    with writing_to(target):
        export_model(target, model, tokenizer, pooling=pooling)
    written = f"{described(model.head_name)} with {count_parameters(model):,} parameters"
    if pooling is None and reads_mean(model):
        return (
            f"{written}; its head uses the mean of all tokens, which no Auto class of transformers "
            f"supports: SentenceTransformer({str(target)!r}).encode(texts) gives its logits, in "
            "the order of id2label in config.json; AutoModel loads the encoder"
        )
    return written


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredImport:
    """A version that was made of an imported model."""

    model: RegisteredModel
    verification: Verification | None  # None where it proved itself before
    alias: str  # champion, where the name had none, or candidate; empty where it has neither


def register_import(
    artifact: Artifact,
    name: str,
    context: StageContext,
    say: Callable[[str], None],
    task: str | None = None,
) -> RegisteredImport:
    """Register the imported model as a version of `name`, and prove it; `say` gets each step.

    It proves itself as every version does, in a process of its own with the code that it carries;
    what it repeats is its response to the texts that lie with it. Where the name has no champion it
    becomes that, else it stays a candidate. `task` says its kind where models of several tasks have
    such a head. Raises UserError for a head that no registered model has, VerificationError where
    it does not repeat its response.
    """
    assert artifact.kind == IMPORTED and context.tracker is not None
    tracker, names = context.tracker, RegistrationSettings()
    say(f"registering it as {name}")
    submission = Submission(
        kind=_kind_of(artifact, task), name=name, alias=names.candidate_alias, artifact=artifact,
        lineage={IMPORTED: artifact}, recipe_yaml=_recipe_of_import(artifact),
    )  # fmt: skip
    model, verification = register(submission, tracker), None
    if not model.is_verified:
        say(f"loading {model.uri} in a fresh process, to compare its answers")
        proof = Proof(model=model, data=artifact)
        verification = verify([proof], context.store.url, tracker)[0]
    if version_with_alias(tracker.client(), name, names.alias) is None:
        reason = "imported by a person, and the name had no champion"
        number = str(model.version)
        move_alias(tracker, promotion_by_choice(tracker, name, number, names.alias, reason))
    aliases = tracker.client().get_registered_model(name).aliases
    own = (names.alias, names.candidate_alias)
    alias = next((each for each in own if int(aliases.get(each, 0)) == model.version), "")
    return RegisteredImport(model=model, verification=verification, alias=alias)


def _kind_of(artifact: Artifact, task: str | None) -> str:
    head = artifact.statistics["head"]
    if head in ("encoder", "pretraining"):
        return "encoder"
    model = load_model(artifact.local_folder())
    kind = family_of_model(model, artifact.statistics["source"], task)
    if kind is None:
        raise UserError(
            f"a {head} model cannot be registered, because it answers no table; import it without "
            "--name, or keep its encoder alone with --head encoder"
        )
    return kind


def _recipe_of_import(artifact: Artifact) -> str:
    statistics = artifact.statistics
    imported = {
        "source": statistics["source"],
        "files": statistics["source_files"],
        "read_by_version": artifact.manifest.version,
        **artifact.manifest.settings,
    }
    return yaml.safe_dump({"imported": imported}, sort_keys=False, allow_unicode=True)
