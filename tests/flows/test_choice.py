"""Options of the command line as overrides of a recipe."""

from pathlib import Path

import pytest

from flows.cli.choice import Choice
from pipelines.core.errors import UserError
from pipelines.core.recipes.files import read_recipe
from pipelines.core.recipes.ladder import EndToEndRecipe


def test_the_demo_is_the_default_and_own_text_has_its_own_preset() -> None:
    assert Choice().source == "demo"
    assert Choice(corpus=("a.txt",)).source == "own-text"
    assert Choice(corpus=("a.txt",), recipe="demo").source == "demo"


def test_an_encoder_is_fine_tuned_or_gone_on_from_with_a_text() -> None:
    assert Choice(encoder="theirs").source == "own-encoder"
    assert Choice(encoder="theirs").all_overrides() == ['finetuning.encoder="theirs"']
    for choice in (
        Choice(encoder="theirs", corpus=("a.txt",)),
        Choice(encoder="theirs", is_pretraining=True),
    ):
        assert choice.source == "continue"
        recipe = read_recipe(EndToEndRecipe, choice.source, choice.all_overrides())
        assert recipe.pretraining.encoder == "theirs"
        assert recipe.finetuning.encoder is None


def test_options_reach_the_recipe() -> None:
    choice = Choice(
        recipe="demo",
        corpus=("some texts/*.txt", "b.txt"),
        labels="labels: odd, name.csv",
        label_column="yes",
        home=Path("/some where"),
        store="s3://bucket/prefix",
        num_workers=3,
        training_workers=2,
    )
    recipe = read_recipe(EndToEndRecipe, choice.source, choice.all_overrides())
    assert recipe.corpus.sources[0].paths == ("some texts/*.txt", "b.txt")
    assert recipe.labelled.source.path == "labels: odd, name.csv"
    assert recipe.labelled.source.label_column == "yes"
    assert recipe.place.home == "/some where"
    assert recipe.place.store == "s3://bucket/prefix"
    assert (recipe.place.num_workers, recipe.place.training_workers) == (3, 2)


def test_a_folder_of_labels_is_a_data_set_and_what_is_held_out_its_split(tmp_path: Path) -> None:
    choice = Choice(encoder="theirs", labels=str(tmp_path), heldout="validation", task="tagging")
    source = read_recipe(EndToEndRecipe, choice.source, choice.all_overrides()).labelled.source
    assert (source.kind, source.dataset, source.split, source.heldout_split) == (
        "hugging_face", str(tmp_path), "train", "validation"
    )  # fmt: skip


def test_set_has_the_last_word() -> None:
    choice = Choice(recipe="demo", num_workers=3, overrides=("place.num_workers=5",))
    recipe = read_recipe(EndToEndRecipe, choice.source, choice.all_overrides())
    assert recipe.place.num_workers == 5


def test_a_layout_is_of_the_files_that_are_named() -> None:
    choice = Choice(corpus=("a.txt",), layout="blank_line")
    recipe = read_recipe(EndToEndRecipe, choice.source, choice.all_overrides())
    assert recipe.corpus.sources[0].layout == "blank_line"
    with pytest.raises(UserError, match=r"layout: must be one of auto, file, .*got 'pages'"):
        wrong = Choice(corpus=("a.txt",), layout="pages")
        read_recipe(EndToEndRecipe, wrong.source, wrong.all_overrides())
    with pytest.raises(UserError, match="found no --corpus"):
        Choice(layout="line").all_overrides()
