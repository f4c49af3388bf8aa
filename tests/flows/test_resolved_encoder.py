"""An encoder that cannot learn what the recipe asks of it is refused before a corpus is built."""

from types import SimpleNamespace

import pytest

from bert_core.config import encoder_config
from bert_core.model.catalogue import PretrainingModel
from bert_core.training.state import save_model
from bert_core.vocabulary import SPECIAL_TOKENS, WordPieceTokenizer
from flows.chain import with_encoders_in_store
from flows.end_to_end import _lineage
from pipelines.errors import UserError
from pipelines.recipes.files import read_recipe
from pipelines.stage import StageContext
from pipelines.store import ArtifactStore


@pytest.fixture
def context(tmp_path) -> StageContext:
    return StageContext(store=ArtifactStore(tmp_path / "store"))


@pytest.fixture
def folder(tmp_path) -> str:
    tokenizer = WordPieceTokenizer([*SPECIAL_TOKENS, "a", "b"])
    save_model(tmp_path / "model", PretrainingModel(encoder_config("tiny", tokenizer.vocab_size)))
    tokenizer.save(tmp_path / "model")
    return str(tmp_path / "model")


def run_of(recipe, context, **artifacts) -> SimpleNamespace:
    """What encoders are looked up in, without Prefect."""
    return SimpleNamespace(
        recipe=recipe, context=context, tracker=None, artifacts=artifacts,
        stage=lambda title, function, *inputs: function(*inputs),
    )  # fmt: skip


def test_the_wrong_objective_for_an_encoder_is_refused_before_anything_is_built(folder, context):
    overrides = [f"pretraining.encoder={folder}", "examples.objective=clm"]
    recipe = read_recipe("continue", overrides)
    with pytest.raises(UserError, match=r"the objective mlm or mlm_nsp, not clm"):
        with_encoders_in_store(run_of(recipe, context))


def test_a_continued_encoder_gives_its_tokenizer_and_is_in_the_lineage(folder, context):
    run = run_of(read_recipe("continue", [f"pretraining.encoder={folder}"]), context)
    run.recipe = with_encoders_in_store(run)
    fingerprint = run.recipe.pretraining.encoder
    assert len(fingerprint) == 32
    assert run.recipe.vocabulary.encoder is None
    assert run.recipe.tokenizer.encoder == fingerprint
    run.artifacts["pretraining"] = SimpleNamespace(kind="encoder")
    lineage = _lineage(run, with_task=False)
    assert lineage["base_encoder"].fingerprint == fingerprint
    assert lineage["encoder"] is run.artifacts["pretraining"]
    assert "base_encoder" not in _lineage(run_of(read_recipe("demo"), context), with_task=False)
