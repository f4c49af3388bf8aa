"""Recipes: presets, files and overrides give one typed model; every fault is one sentence."""

from pathlib import Path

import pytest
import yaml

from pipelines.errors import UserError
from pipelines.recipes.files import completed, differences, preset_names, read_recipe
from pipelines.recipes.recipe import Recipe


def test_every_preset_is_a_whole_recipe_and_survives_its_own_yaml(tmp_path: Path) -> None:
    for name in preset_names():
        recipe = read_recipe(name)
        written = tmp_path / f"{name}.yaml"
        written.write_text(recipe.to_yaml())
        assert read_recipe(str(written)) == recipe


def test_every_field_has_a_default_and_a_description() -> None:
    def check(schema: dict, definitions: dict, path: str) -> None:
        for name, field in schema.get("properties", {}).items():
            here = f"{path}.{name}"
            # A section may be described by its own model.
            described = [field, *(definitions[reference] for reference in _references(field))]
            if name != "kind":  # which member of a union it is
                assert any("description" in part for part in described), f"{here}: no description"
            for reference in _references(field):
                check(definitions[reference], definitions, here)
        assert not schema.get("required"), f"{path} has fields without a default"

    schema = Recipe.model_json_schema()
    check(schema, schema["$defs"], "recipe")


def _references(field: object) -> set[str]:
    if isinstance(field, dict):
        found = {field["$ref"].rpartition("/")[2]} if "$ref" in field else set()
        return found.union(*(_references(value) for value in field.values()))
    if isinstance(field, list):
        return set().union(*(_references(value) for value in field))
    return set()


@pytest.mark.parametrize(
    ("source", "overrides", "message"),
    [
        ("nothing", [], "neither a preset nor a file named 'nothing'"),
        ("demo", ["vocabulary.size"], "is not section.setting=value"),
        ("demo", ["vocabulary.size=[1"], "is not valid YAML"),
        ("demo", ["name=2026-02-30"], "'name=2026-02-30' is not valid YAML"),
        ("list.yaml", [], "has no sections"),
        ("open.yaml", [], "is not valid YAML"),
        ("twice.yaml", [], r"'corpus' occurs twice .*line 3"),
    ],
)
def test_faults_are_sentences(
    source: str, overrides: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("list.yaml").write_text("- 1\n")
    Path("open.yaml").write_text("a: [\n")
    Path("twice.yaml").write_text("name: a\ncorpus: {}\ncorpus: {}\n")
    with pytest.raises(UserError, match=message):
        read_recipe(source, overrides)


def test_what_is_not_given_comes_from_the_base() -> None:
    base = read_recipe("demo").model_dump(mode="json")
    given = Recipe.model_validate({"pretraining": {"num_steps": 100}})
    whole = completed(given, base, ["finetuning.learning_rate=3e-4"])
    assert whole.pretraining.size == "tiny"  # the schema's default is mini
    assert whole.finetuning.num_epochs == 10
    changed = differences(whole.model_dump(mode="json"), base)
    assert changed == {"pretraining.num_steps": 100, "finetuning.learning_rate": 3e-4}


def test_a_part_of_another_kind_replaces_the_bases_as_a_whole() -> None:
    base = read_recipe("demo").model_dump(mode="json")
    other = {"kind": "labelled_file", "path": "reviews.csv"}
    given = Recipe.model_validate({"dataset": {"source": other}})
    assert completed(given, base).dataset.source.path == "reviews.csv"
    same = Recipe.model_validate({"dataset": {"source": {"kind": "corpus_source", "min_words": 3}}})
    kept = completed(same, base).dataset.source
    assert (kept.min_words, kept.max_train_documents) == (3, 500)


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("examples.random_share=0.9", "mask_share and random_share must not .* 0.8 and 0.9"),
        ("finetuning.max_tokens=512", "finetuning.max_tokens must be at most the 128 tokens"),
    ],
)
def test_values_that_do_not_go_together_are_one_sentence(override: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence) as caught:
        read_recipe("demo", [override])
    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize(
    ("text", "workers"), [("auto", "auto"), ("4", 4), ("[2, 8]", (2, 8)), ('"auto"', "auto")]
)
def test_training_workers_are_a_number_a_range_or_auto(text, workers):
    recipe = read_recipe("demo", [f"runtime.training_workers={text}"])
    assert recipe.runtime.training_workers == workers
    assert Recipe.model_validate(yaml.safe_load(recipe.to_yaml())) == recipe


def test_the_vocabulary_of_a_recipe_goes_with_its_encoder() -> None:
    override = ["pretraining.encoder=some/folder", "pretraining.initialization=published"]
    assert read_recipe("demo", override).tokenizer.encoder == "some/folder"
    recipe = read_recipe("demo", [*override, "vocabulary.encoder=other"])
    assert recipe.tokenizer.encoder == "other"
    assert read_recipe("demo").tokenizer.encoder is None
    with pytest.raises(UserError, match=r"initialization=informed is for random weights"):
        read_recipe("demo", [*override, "pretraining.initialization=informed"])


def test_a_recipe_that_was_written_down_follows_another_encoder(tmp_path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text(read_recipe("continue").to_yaml())
    other = read_recipe(str(mine), ["pretraining.encoder=my-bert"])
    assert other.tokenizer.encoder == "my-bert"
    without = ["pretraining.encoder=null", "pretraining.learning_rate=1e-3"]
    anew = read_recipe(str(mine), without)
    assert anew.tokenizer.encoder is None
