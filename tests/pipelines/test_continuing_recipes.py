"""What a recipe says of the encoder to go on from."""

import pytest

from pipelines.errors import UserError
from pipelines.recipes.files import read_recipe


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
