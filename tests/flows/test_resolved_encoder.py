"""An encoder that cannot learn what the recipe asks of it is refused before a corpus is built."""

from types import SimpleNamespace

import pytest
import yaml

from bert_core.config import encoder_config
from bert_core.hugging_face import export_model
from bert_core.model.catalogue import PretrainingModel
from bert_core.training.state import save_model
from bert_core.vocabulary import SPECIAL_TOKENS, WordPieceTokenizer
from flows.chain import with_resolved_encoders
from flows.cli.commands.build import long_form
from flows.end_to_end import _lineage
from pipelines.artifacts import ArtifactStore
from pipelines.config.errors import UserError
from pipelines.recipes.files import read_recipe
from pipelines.recipes.models import EndToEndRecipe, PretrainingRecipe
from pipelines.stage import StageContext


@pytest.fixture
def context(tmp_path) -> StageContext:
    return StageContext(store=ArtifactStore(tmp_path / "store"))


@pytest.fixture
def folder(tmp_path) -> str:
    tokenizer = WordPieceTokenizer([*SPECIAL_TOKENS, "a", "b"])
    save_model(tmp_path / "model", PretrainingModel(encoder_config("tiny", tokenizer.vocab_size)))
    tokenizer.save(tmp_path / "model")
    return str(tmp_path / "model")


def run_of(recipe, context) -> SimpleNamespace:
    """What the encoder is settled in, without Prefect."""
    return SimpleNamespace(
        recipe=recipe, context=context, tracker=None, encoders={},
        stage=lambda name, task, *inputs: task.fn(*inputs),
    )  # fmt: skip


def test_the_wrong_objective_for_an_encoder_is_refused_before_anything_is_built(folder, context):
    overrides = [f"pretraining.encoder={folder}", "examples.objective=clm"]
    recipe = read_recipe(PretrainingRecipe, "continue", overrides)
    with pytest.raises(UserError, match=r"the objective mlm or mlm_nsp, not clm"):
        with_resolved_encoders(run_of(recipe, context))


def test_a_settled_recipe_says_the_encoder_once_and_its_stages_hear_it_twice(folder, context):
    recipe = read_recipe(PretrainingRecipe, "continue", [f"pretraining.encoder={folder}"])
    run = run_of(recipe, context)
    settled = with_resolved_encoders(run)
    fingerprint = run.encoders[folder]
    assert settled.pretraining.encoder == fingerprint
    assert settled.vocabulary.encoder is None
    assert settled.resolved().vocabulary.encoder == fingerprint


def test_the_encoder_gone_on_from_is_among_the_lineage(folder, context):
    made = {
        name: SimpleNamespace(kind=kind)
        for name, kind in (("corpus", "corpus"), ("vocabulary", "vocabulary"),
                           ("examples", "examples"), ("pretraining", "encoder"))
    }  # fmt: skip
    recipe = read_recipe(EndToEndRecipe, "continue", [f"pretraining.encoder={folder}"])
    run = run_of(recipe, context)
    found = _lineage(with_resolved_encoders(run), made, context)
    assert found["went_on_from"].fingerprint == run.encoders[folder]
    assert found["encoder"] is made["pretraining"]
    demo = read_recipe(EndToEndRecipe, "demo")
    assert "went_on_from" not in _lineage(demo, made, context)


def test_the_recipe_that_is_shown_says_what_auto_comes_to(folder, tmp_path):
    published = tmp_path / "published"
    export_model(
        published, PretrainingModel(encoder_config("mini", 7)),
        WordPieceTokenizer([*SPECIAL_TOKENS, "a", "b"]),
    )  # fmt: skip
    home = f"runtime.home={tmp_path / 'home'}"

    def said(preset: str, *overrides: str) -> list[str]:
        shown = long_form(read_recipe(EndToEndRecipe, preset, [home, *overrides]))
        assert yaml.safe_load(shown)["name"] == preset
        return [line for line in shown.splitlines() if line.startswith("#")]

    tiny = "for an encoder of 2 layers of width 128"
    assert said("continue", f"pretraining.encoder={folder}") == [
        f"# pretraining: learning_rate=auto is 0.0005 {tiny}",
        f"# finetuning: learning_rate=auto is 0.001 {tiny}",
    ]
    rate = "learning_rate=auto is 0.00031 for an encoder of 4 layers of width 256"
    source = "dataset.source.path=x.csv"
    assert said("own-encoder", source, f"finetuning.encoder={published}") == [
        f"# finetuning: {rate}"
    ]
    assert said("own-text", "pretraining.size=mini") == [f"# finetuning: {rate}"]
    assert said("continue", "finetuning.learning_rate=2e-5") == [
        "# pretraining: learning_rate=auto follows the size of models:/bertsmith-encoder@champion"
    ]
    assert said("demo") == []
