"""Options of the command line as overrides of a recipe."""

from pathlib import Path

import pytest

from flows.cli.app import DONE, run
from flows.cli.choice import Choice
from pipelines.config.errors import UserError
from pipelines.recipes.files import read_recipe
from pipelines.recipes.models import EndToEndRecipe
from pipelines.tasks import family, family_names


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


@pytest.mark.parametrize("arguments", [["run", "demo"], ["pretrain"], ["finetune", "own-text"]])
def test_the_recipe_is_shown_and_nothing_runs(
    arguments: list[str], own_home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labels = tmp_path / "labels.csv"
    labels.write_text("text,label\n" + "".join(f"text {n},{'ab'[n % 2]}\n" for n in range(20)))
    (tmp_path / "text.txt").write_text("A text that is long enough to be one.\n" * 40)
    if "finetune" in arguments:
        arguments = [*arguments, "--labels", str(labels), "--corpus", str(tmp_path / "*.txt")]
    assert run([*arguments, "--set", "vocabulary.size=9000", "--show-recipe"]) == DONE
    said = capsys.readouterr()
    shown = tmp_path / "shown.yaml"
    shown.write_text(said.out)
    assert read_recipe(EndToEndRecipe, str(shown)).vocabulary.size == 9000
    assert said.err == ""
    assert not own_home.exists()


def test_options_reach_the_recipe() -> None:
    choice = Choice(
        recipe="demo",
        corpus=("some texts/*.txt", "b.txt"),
        labels="labels: odd, name.csv",
        label_column="yes",
        home=Path("/some where"),
        store="s3://bucket/prefix",
        workers=3,
        training_workers=2,
    )
    recipe = read_recipe(EndToEndRecipe, choice.source, choice.all_overrides())
    assert recipe.corpus.sources[0].paths == ("some texts/*.txt", "b.txt")
    assert recipe.dataset.source.path == "labels: odd, name.csv"
    assert recipe.dataset.source.label_column == "yes"
    assert recipe.runtime.home == "/some where"
    assert recipe.runtime.store == "s3://bucket/prefix"
    assert (recipe.runtime.num_workers, recipe.runtime.training_workers) == (3, 2)


def test_a_folder_of_labels_is_a_data_set_and_what_is_held_out_its_split(tmp_path: Path) -> None:
    choice = Choice(encoder="theirs", labels=str(tmp_path), heldout="validation", task="tagging")
    source = read_recipe(EndToEndRecipe, choice.source, choice.all_overrides()).dataset.source
    assert (source.kind, source.dataset, source.split, source.heldout_split) == (
        "hugging_face", str(tmp_path), "train", "validation"
    )  # fmt: skip


@pytest.mark.parametrize("name", family_names())
def test_a_task_is_named_with_either_stroke_and_shown_with_one(name: str) -> None:
    shown = name.replace("_", "-")
    preset = "classification" if name == "regression" else name
    for written in {name, shown}:
        choice = Choice(recipe=preset, labels="a.csv", task=written)
        recipe = read_recipe(EndToEndRecipe, choice.source, choice.all_overrides())
        assert f"family: {shown}\n" in recipe.to_yaml()
        assert family(recipe.dataset.family) is family(name)
    asked = read_recipe(EndToEndRecipe, shown)
    assert asked == read_recipe(EndToEndRecipe, name)
    with pytest.raises(UserError, match=rf"must be one of .*{shown}"):
        read_recipe(EndToEndRecipe, "demo", ["dataset.family=none"])


def test_set_has_the_last_word() -> None:
    choice = Choice(recipe="demo", workers=3, overrides=("runtime.num_workers=5",))
    recipe = read_recipe(EndToEndRecipe, choice.source, choice.all_overrides())
    assert recipe.runtime.num_workers == 5


def test_a_layout_is_of_the_files_that_are_named() -> None:
    choice = Choice(corpus=("a.txt",), layout="blank_line")
    recipe = read_recipe(EndToEndRecipe, choice.source, choice.all_overrides())
    assert recipe.corpus.sources[0].layout == "blank_line"
    with pytest.raises(UserError, match=r"layout: must be one of file, .*got 'pages'"):
        wrong = Choice(corpus=("a.txt",), layout="pages")
        read_recipe(EndToEndRecipe, wrong.source, wrong.all_overrides())
    with pytest.raises(UserError, match="--layout and --corpus-column require --corpus"):
        Choice(layout="line").all_overrides()


def test_names_beyond_the_basic_plane_and_a_tilde_reach_the_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    choice = Choice(
        recipe="demo", corpus=("\U0001f4da/é.txt",), labels="\U0001f4da.csv", home=Path("~/project")
    )
    recipe = read_recipe(EndToEndRecipe, choice.source, choice.all_overrides())
    assert recipe.corpus.sources[0].paths == ("\U0001f4da/é.txt",)
    assert recipe.dataset.source.path == "\U0001f4da.csv"
    assert recipe.runtime.home == str(tmp_path / "project")
