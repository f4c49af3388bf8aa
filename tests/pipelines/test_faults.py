"""What is wrong with settings is said in plain words, with the names that may have been meant."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from pipelines.config.errors import UserError
from pipelines.recipes.files import completed, flattened, read_recipe
from pipelines.recipes.models import EndToEndRecipe

CASES = {
    "examples.mask_fractoin=0.2": "no setting 'examples.mask_fractoin'; did you mean "
    "examples.mask_fraction?",
    "exmples.max_tokens=3": "no setting 'exmples'; did you mean examples?",
    "finetuning.mask_fraction=0.1": "did you mean examples.mask_fraction or "
    "pretraining.mask_fraction?",
    "mask_fraction=0.1": "did you mean examples.mask_fraction or pretraining.mask_fraction?",
    "zzz=1": "has no setting 'zzz'; see `bertsmith recipes show`",
    "corpus.heldout_fraction=2": "corpus.heldout_fraction: must be less than 1, got 2",
    "corpus.sources=[{kind: text, path: x}]": "'corpus.sources.0.path'; did you mean "
    "corpus.sources.0.paths?",
    "dataset.source={kind: labelled_flie}": "must be one of corpus_source, labelled_file, "
    "hugging_face, none; did you mean labelled_file?",
    "dataset.source={kind: labelled_file, pth: x}": "did you mean dataset.source.path?",
    "finetuning.search={learning_rat: [1]}": "did you mean finetuning.search.learning_rate?",
    "runtime.training_workers=[8,0]": "runtime.training_workers: must be at least 1, got 0",
    "runtime.training_workers=many": "must be auto or a whole number or a list, got 'many'",
    "pretraining.optimizer=adam": "must be one of adamw, lamb, muon, got 'adam'; did you mean",
    "vocabulary.size=null": "vocabulary.size: must be a whole number, got null",
    "name=''": "name: must have at least 1 character, got ''",
}


@pytest.mark.parametrize("change", CASES)
def test_a_mistyped_setting_is_one_plain_sentence(change: str, tmp_path: Path) -> None:
    refused = []
    with pytest.raises(UserError) as on_the_command_line:
        read_recipe(EndToEndRecipe, "demo", [change])
    refused.append(on_the_command_line.value)
    path, _, value = change.partition("=")
    written = tmp_path / "mine.yaml"
    *sections, name = path.split(".")
    lines = [f"{'  ' * depth}{section}:" for depth, section in enumerate(sections)]
    written.write_text("\n".join([*lines, f"{'  ' * len(sections)}{name}: {value}"]))
    if name != "pth":
        with pytest.raises(UserError) as in_a_file:
            read_recipe(EndToEndRecipe, str(written))
        refused.append(in_a_file.value)
    with pytest.raises(UserError) as in_a_deployment:
        completed(EndToEndRecipe(), {}, [change])
    refused.append(in_a_deployment.value)
    for error in refused:
        assert CASES[change] in str(error)
        assert len(str(error).splitlines()) == 1


def _paths(values: dict[str, Any]) -> Iterator[str]:
    return (path for path, _ in flattened(values))


WRONG: tuple[Any, ...] = ({"odd": 1}, "odd one", -(10**30), [{"odd": 1}], True, float("nan"))
PATHS = list(_paths(EndToEndRecipe().model_dump(mode="json")))


@pytest.mark.parametrize("path", PATHS)
def test_no_word_of_pydantic_comes_through(path: str) -> None:
    from pydantic import ValidationError

    from pipelines.recipes.faults import explain

    for wrong in WRONG:
        values: dict[str, Any] = {}
        section = values
        *sections, name = path.split(".")
        for each in sections:
            section = section.setdefault(each, {})
        section[name] = wrong
        recipe: type[BaseModel] = EndToEndRecipe
        try:
            recipe.model_validate(values)
        except ValidationError as error:
            for said in explain(error, "it", recipe).splitlines():
                assert said.startswith(("it: ", "it has no setting"))
                for word in (
                    "Input should",
                    "valid",
                    "instance of",
                    "dictionary",
                    "permitted",
                    "Value ",
                ):
                    assert word not in said, said


def test_a_preset_is_found_by_a_name_like_its_own() -> None:
    with pytest.raises(UserError, match=r"named 'dmeo'; did you mean demo\?"):
        read_recipe(EndToEndRecipe, "dmeo")
