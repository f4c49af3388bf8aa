"""Models go out to transformers and come back unchanged; pictures of them can be drawn."""

from pathlib import Path

import pytest
import torch

from bert_core.config import encoder_config
from bert_core.model.catalogue import PretrainingModel
from bert_core.training.state import load_model, save_model
from bert_core.vocabulary import WordPieceTokenizer
from pipelines.errors import UserError
from pipelines.registry.exchange import export_version, import_path
from pipelines.stage import StageContext
from pipelines.store import ArtifactStore
from pipelines.tracking.tracker import Tracker

NOWHERE = Tracker(uri="sqlite:////nowhere.db", experiment="unused")  # folders need no tracker


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model with random weights, and its tokenizer."""
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "sum", "of", "<b>"]
    target = tmp_path_factory.mktemp("models") / "small"
    torch.manual_seed(0)
    save_model(target, PretrainingModel(encoder_config("tiny", len(tokens))))
    WordPieceTokenizer(tokens).save(target)
    return target


@pytest.fixture
def context(tmp_path: Path) -> StageContext:
    return StageContext(store=ArtifactStore(tmp_path / "store"))


def test_out_and_in_again_changes_no_bit(
    folder: Path, context: StageContext, tmp_path: Path
) -> None:
    written = export_version(NOWHERE, str(folder), tmp_path / "theirs", None)
    read = import_path(tmp_path / "theirs", context)
    assert f"with {read.statistics['num_parameters']:,} parameters" in written
    ours = read.local_folder()
    before, after = load_model(folder).state_dict(), load_model(ours).state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    tokenizer = WordPieceTokenizer.from_directory(ours)
    assert tokenizer.tokens == WordPieceTokenizer.from_directory(folder).tokens


def test_what_is_no_model_is_refused(folder: Path, context: StageContext, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is neither a model's folder"):
        import_path(tmp_path / "nothing", context)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"has no config\.json"):
        import_path(tmp_path / "empty", context)
    assert not (tmp_path / "store").exists()
    with pytest.raises(UserError, match="must be new or empty"):
        export_version(NOWHERE, str(folder), folder, None)
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UserError, match="cannot be written"):
        export_version(NOWHERE, str(folder), tmp_path / "file" / "new", None)
