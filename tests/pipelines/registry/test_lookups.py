"""What the look-ups tell of registered versions, in the terminal, as JSON and as a page."""

import html.parser
import json
from pathlib import Path

import pytest

from flows.cli.app import DONE, MISTAKE, run
from pipelines.registry.comparison.versus import versus
from pipelines.registry.finding import VERIFIED_TAG
from pipelines.registry.lineage import LineageNode, lineage_of, lineage_page
from pipelines.registry.promotion import promote, rollback
from pipelines.tracking.tracker import FINGERPRINT_TAG
from pipelines.training.imported_models import import_folder
from tests.pipelines.registry.conftest import Models


@pytest.fixture(autouse=True)
def own_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Commands look for their home here."""
    monkeypatch.setenv("BERTSMITH_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")


def titles(origin: LineageNode) -> list[str]:
    return [origin.title, *(title for each in origin.origins for title in titles(each))]


def verified_by_hand(models: Models, *numbers: str) -> None:
    """The tag without the proof: what is looked at here is whom an alias belongs to."""
    for number in numbers:
        models.tracker.client().set_model_version_tag(
            "encoder", number, "bertsmith.verified", "true"
        )


def test_the_lineage_goes_down_to_files_and_settings(models: Models) -> None:
    models.register(models.encoder(1))
    # The encoder of these tests names no inputs: below it is what the version's own artifact says.
    root = lineage_of(models.tracker, models.context.store, "models:/encoder@candidate")
    assert root.title == "models:/encoder/1"
    assert root.facts["aliases"] == "candidate"
    (encoder,) = root.origins
    assert encoder.settings == {"seed": 1, "steps": 0}
    assert "model.safetensors" in encoder.facts["files"]


def test_an_artifact_is_followed_to_the_bytes_that_came_from_outside(models: Models) -> None:
    from pipelines.registry.lineage import _of_artifact

    found = _of_artifact("examples", models.examples.fingerprint, models.context.store)
    assert titles(found)[0] == "examples"
    assert {"corpus", "vocabulary", "text"} <= set(titles(found))
    corpus = next(each for each in found.origins if each.title == "corpus")
    (text,) = corpus.origins
    assert text.title == "text"
    assert text.facts["files"] == "24"
    assert found.changed["max_tokens"] == 64
    assert "max_tokens" in found.settings
    gone = _of_artifact("examples", "0" * 32, models.context.store)
    assert "not in this store" in gone.facts


class Page(html.parser.HTMLParser):
    """What a page loads, and its text."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.text: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loaded += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_what_was_imported_is_found_under_whatever_its_reader_calls_it(models: Models) -> None:
    from pipelines.registry.lineage import _of_artifact

    imported = import_folder(models.encoder(1).local_folder(), models.context, source="theirs")
    for name in ("encoder", "finetuned", "went_on_from"):
        found = _of_artifact(name, imported.fingerprint, models.context.store)
        assert found.title == "imported_model"
        assert "model.safetensors" in found.facts["files"]


def test_a_repeated_import_names_the_alias_that_its_version_has_now(
    models: Models, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    folder, client = models.encoder(1).local_folder(), models.tracker.client()
    imported = import_folder(folder, models.context, source="theirs")
    client.create_registered_model("theirs")
    known = {FINGERPRINT_TAG: imported.fingerprint, VERIFIED_TAG: "true"}
    for tags in (known, {}):  # the second version is of something else
        client.create_model_version("theirs", source=str(tmp_path), tags=tags)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", models.tracker.uri)
    command = ["import", str(folder), "--name", "theirs", "--store", models.context.store.url]
    for aliases, held, called in (
        ({"champion": "2", "candidate": "2"}, "", "theirs/1"),
        ({"candidate": "1"}, "; candidate", "theirs@candidate"),
        ({"champion": "1"}, "; champion", "theirs@champion"),
    ):
        for alias, number in aliases.items():
            client.set_registered_model_alias("theirs", alias, number)
        assert run(command) == DONE
        said = capsys.readouterr().out
        assert f"models:/theirs/1, loaded in a fresh process, was registered before{held}\n" in said
        assert f"finetune --encoder models:/{called} --labels" in said


def test_the_page_holds_everything_and_loads_nothing(models: Models) -> None:
    from pipelines.registry.lineage import _of_artifact

    found = _of_artifact("examples", models.examples.fingerprint, models.context.store)
    evil = LineageNode(title="<script>x</script>", fingerprint="a" * 64, facts={}, settings={},
                  changed={}, origins=(found,))  # fmt: skip
    page = Page()
    page.feed(lineage_page(evil))
    assert page.loaded == []
    assert "script" not in page.tags
    text = " ".join(page.text)
    for words in ("<script>x</script>", models.examples.fingerprint, "max_tokens", "text"):
        assert words in text


def test_models_tells_who_had_which_alias(
    models: Models, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in (1, 2):
        models.register(models.encoder(seed))
    verified_by_hand(models, "1", "2")
    promote(models.tracker, "encoder", "1", "champion", by="ann")
    promote(models.tracker, "encoder", "2", "champion", "it is new", by="ann")
    rollback(models.tracker, "encoder", "champion", "it is slow", by="bea")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", models.tracker.uri)
    assert run(["models"]) == DONE
    said = capsys.readouterr().out
    for words in (
        "encoder  version 1   @champion", "champion is version 2, before 1, by ann: it is new",
        "champion is version 1, before 2, by bea: it is slow", "made from examples",
    ):  # fmt: skip
        assert words in said
    assert run(["models", "--json"]) == DONE
    rows = json.loads(capsys.readouterr().out)
    assert [row["version"] for row in rows] == [2, 1]
    assert [move["how"] for move in rows[1]["moves"]] == ["person", "rollback"]
    assert rows[0]["lineage"]["examples"] == models.examples.fingerprint


def test_lineage_on_the_command_line(
    models: Models, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    models.register(models.encoder(1))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", models.tracker.uri)
    store = ["--store", models.context.store.url]
    assert run(["lineage", "models:/encoder/1", *store]) == DONE
    said = capsys.readouterr().out
    assert "models:/encoder/1" in said
    assert "seed: 1" in said
    files = lineage_of(models.tracker, models.context.store, "encoder/1").origins[0].facts["files"]
    assert len(files) > 80
    assert f"files: {files}\n" in said  # no line is cut where there is no terminal
    assert run(["lineage", "encoder/1", "--json", *store]) == DONE
    assert json.loads(capsys.readouterr().out)["from"][0]["settings"]["seed"] == 1
    page = tmp_path / "pages" / "lineage.html"
    assert run(["lineage", "encoder/1", "--out", str(page), *store]) == DONE
    assert page.read_text().startswith("<!doctype html>")
    assert run(["lineage", "encoder/9", *store]) == MISTAKE


def test_a_version_is_not_compared_with_itself(models: Models) -> None:
    from pipelines.config.errors import UserError

    models.register(models.encoder(1))
    with pytest.raises(UserError, match="name two versions"):
        versus(models.tracker, models.context.store, "encoder/1", "encoder@candidate")


@pytest.mark.slow
def test_compare_tells_scores_settings_and_data(
    models: Models, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = "name: small\npretraining: {{num_steps: {steps}}}\n"
    for steps in (40, 0):
        submission = models.submission(
            models.trained(1, steps), recipe_yaml=recipe.format(steps=steps)
        )
        models.prove(models.register_submission(submission))
    found = versus(models.tracker, models.context.store, "encoder/1", "encoder/2")
    assert found.difference is not None, found.why_not
    assert found.difference.value > 0
    assert found.settings == {"pretraining.num_steps": (40, 0)}
    assert found.data == {}
    monkeypatch.setenv("MLFLOW_TRACKING_URI", models.tracker.uri)
    command = ["compare", "encoder/1", "encoder/2", "--store", models.context.store.url]
    assert run(command) == DONE
    said = capsys.readouterr().out
    assert "pretraining.num_steps  40  ->  0" in said
    assert "the first is better by +" in said
