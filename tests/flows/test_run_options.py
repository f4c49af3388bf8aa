"""The options of `bertsmith run` as settings of the recipe."""

from collections.abc import Callable
from pathlib import Path

import pytest

from flows.cli.app import DONE, MISTAKE, run
from pipelines.recipes.files import read_recipe
from pipelines.recipes.recipe import Recipe
from pipelines.tasks import FAMILIES, family

Shown = Callable[..., Recipe]


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str], tmp_path: Path, own_home: Path) -> Shown:
    """The recipe that `bertsmith run … --show-recipe` prints."""

    def show(*arguments: str) -> Recipe:
        assert run(["run", *arguments, "--show-recipe"]) == DONE
        printed = capsys.readouterr()
        assert printed.err == ""
        assert not own_home.exists()
        path = tmp_path / "shown.yaml"
        path.write_text(printed.out)
        return read_recipe(str(path))

    return show


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(["run", *arguments, "--show-recipe"]) == MISTAKE
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "preset"),
    [
        ([], "demo"),
        (["--corpus", "a.txt"], "own-text"),
        (["demo", "--corpus", "a.txt"], "demo"),
        (["--encoder", "theirs"], "own-encoder"),
        (["--encoder", "theirs", "--corpus", "a.txt"], "continue"),
        (["--encoder", "theirs", "--until", "pretraining"], "continue"),
    ],
)
def test_the_preset_follows_from_what_is_given(
    arguments: list[str], preset: str, shown: Shown
) -> None:
    recipe = shown(*arguments)
    assert recipe.name == preset
    if "theirs" in arguments:
        continues = preset == "continue"
        assert recipe.pretraining.encoder == ("theirs" if continues else None)
        assert recipe.finetuning.encoder == (None if continues else "theirs")


def test_a_preset_of_new_encoders_continues_one_at_a_rate_that_is_set(shown: Shown) -> None:
    given = ("--encoder", "theirs", "--corpus", "a.txt", "--labels", "a.conll")
    recipe = shown("tagging", *given, "--set", "pretraining.learning_rate=auto")
    assert recipe.pretraining.encoder == "theirs"


def test_paths_in_the_home_folder_are_put_in_full(
    shown: Shown, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "dataset").mkdir()
    recipe = shown("--encoder=~/theirs", "--labels=~/dataset", "--heldout", "test")
    assert recipe.finetuning.encoder == str(tmp_path / "theirs")
    assert recipe.dataset.source.dataset == str(tmp_path / "dataset")
    (tmp_path / "own.yaml").write_text("name: own\n")
    assert shown("~/own.yaml").name == "own"


def test_a_setting_of_one_source_is_named_by_its_number(shown: Shown) -> None:
    recipe = shown(
        "--corpus", "a.csv", "--set", "corpus.sources.0.encoding=cp1252",
        "--set", 'corpus.sources.0.delimiter="|"',
    )  # fmt: skip
    (source,) = recipe.corpus.sources
    assert (source.encoding, source.delimiter) == ("cp1252", "|")


def test_options_reach_the_recipe_and_set_has_the_last_word(shown: Shown, tmp_path: Path) -> None:
    recipe = shown(
        "demo", "--corpus", "some texts/*.txt", "--corpus", "\U0001f4da/é.txt",
        "--layout", "blank_line", "--labels", "labels: odd, \U0001f4da.csv",
        "--label-column", "yes", "--store", "s3://bucket/prefix", "--workers", "3",
        "--training-workers", "2", "--set", "runtime.training_workers=5",
    )  # fmt: skip
    (source,) = recipe.corpus.sources
    assert source.paths == ("some texts/*.txt", "\U0001f4da/é.txt")
    assert source.layout == "blank_line"
    assert recipe.dataset.source.path == "labels: odd, \U0001f4da.csv"
    assert recipe.dataset.source.label_column == "yes"
    assert recipe.runtime.store == "s3://bucket/prefix"
    assert (recipe.runtime.num_workers, recipe.runtime.training_workers) == (3, 5)


def test_a_name_is_that_of_the_model_and_of_its_encoder(
    shown: Shown, capsys: pytest.CaptureFixture[str]
) -> None:
    names = shown("demo", "--name", "tickets").registration
    assert (names.classifier_name, names.encoder_name) == ("tickets", "tickets-encoder")
    assert "classifier_name" in refused(capsys, "--name", "my/tickets")


def test_a_tilde_is_the_persons_own_folder(
    shown: Shown, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert shown("--home", "~/project").runtime.home == str(tmp_path / "project")


def test_a_folder_of_labels_is_a_data_set_and_what_is_held_out_its_split(
    shown: Shown, tmp_path: Path
) -> None:
    source = shown(
        "--encoder", "theirs", "--labels", str(tmp_path), "--heldout", "validation",
        "--task", "tagging",
    ).dataset.source  # fmt: skip
    assert (source.kind, source.dataset, source.split, source.heldout_split) == (
        "hugging_face", str(tmp_path), "train", "validation"
    )  # fmt: skip


@pytest.mark.parametrize("name", FAMILIES)
def test_a_task_is_named_with_either_stroke_and_shown_with_one(name: str, shown: Shown) -> None:
    preset = "classification" if name == "regression" else name
    with_hyphens = name.replace("_", "-")
    for written in {name, with_hyphens}:
        recipe = shown(preset, "--labels", "a.csv", "--task", written)
        assert recipe.dataset.family == with_hyphens
        assert family(recipe.dataset.family) is family(name)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--corpus", "a.txt", "--layout", "pages"], "layout: must be 'file', "),
        (["--layout", "line"], "--layout and --corpus-column require --corpus"),
        (["--heldout", "x.csv"], "--heldout require --labels"),
        (["--quiet", "--verbose"], "--quiet and --verbose contradict each other"),
        (["--until", "training"], "--until training is not one of corpus, "),
        (
            ["tagging", "--encoder", "theirs", "--corpus", "a.txt"],
            "leave tagging out (--task names",
        ),
        (
            ["question_answering", "--encoder", "theirs", "--corpus", "a.txt"],
            "leave question_answering out (--task names",
        ),
        (
            ["--corpus", "a.txt", "--set", "corpus.sources.1.encoding=cp1252"],
            "names no entry of 'sources', which has 1: the first is 0",
        ),
        (
            ["demo", "--set", "dataset.source.path=a.csv"],
            "dataset.source is of a kind without 'path'; set dataset.source.kind to another one",
        ),
        (["--labels", ""], "--labels is empty"),
        (
            ["--labels", "a.csv", "--set", "dataset.source.delimiter=,"],
            "is not valid YAML; write a sign in quotes, as in '=\",\"'",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sentence in refused(capsys, *arguments)
