"""What is wrong with settings is said in plain words, with the names that may have been meant."""

from pathlib import Path

import pytest

from pipelines.errors import UserError
from pipelines.recipes.files import completed, flattened, read_recipe
from pipelines.recipes.recipe import Recipe

CASES = {
    "examples.mask_fractoin=0.2": "no setting 'examples.mask_fractoin'; did you mean "
    "examples.mask_fraction?",
    "exmples.max_tokens=3": "no setting 'exmples'; did you mean examples?",
    "mask_fraction=0.1": "did you mean examples.mask_fraction or pretraining.mask_fraction?",
    "corpus.heldout_fraction=2": "corpus.heldout_fraction: must be less than 1, got 2",
    "corpus.sources=[{kind: text, path: x}]": "'corpus.sources.0.path'; did you mean "
    "corpus.sources.paths?",
    "dataset.source={kind: labelled_flie}": "did you mean labelled_file?",
    "runtime.training_workers=[8,0]": (
        "runtime.training_workers.1: must be greater than or equal to 1, got 0"
    ),
    "pretraining.optimizer=adam": "must be 'adamw', 'lamb' or 'muon', got 'adam'; did you mean",
    "vocabulary.size=null": "vocabulary.size: must be a valid integer, got null",
    "name=''": "name: must have at least 1 character, got ''",
}


@pytest.mark.parametrize("change", CASES)
def test_a_mistyped_setting_is_one_plain_sentence(change: str, tmp_path: Path) -> None:
    refused = []
    with pytest.raises(UserError) as on_the_command_line:
        read_recipe("demo", [change])
    refused.append(on_the_command_line.value)
    path, _, value = change.partition("=")
    written = tmp_path / "mine.yaml"
    *sections, name = path.split(".")
    lines = [f"{'  ' * depth}{section}:" for depth, section in enumerate(sections)]
    written.write_text("\n".join([*lines, f"{'  ' * len(sections)}{name}: {value}"]))
    with pytest.raises(UserError) as in_a_file:
        read_recipe(str(written))
    refused.append(in_a_file.value)
    with pytest.raises(UserError) as in_a_deployment:
        completed(Recipe(), {}, [change])
    refused.append(in_a_deployment.value)
    for error in refused:
        assert CASES[change] in str(error)
        assert len(str(error).splitlines()) == 1


@pytest.mark.parametrize("path", [path for path, _ in flattened(Recipe().model_dump(mode="json"))])
def test_whatever_is_written_is_refused_in_one_line_a_setting(path: str, tmp_path: Path) -> None:
    for wrong in ("{odd: 1}", "[{odd: 1}]", ".nan", "-1e30"):
        try:
            read_recipe("demo", [f"{path}={wrong}"])
        except UserError as error:
            for line in str(error).splitlines():
                assert line.startswith(("recipe 'demo': ", "recipe 'demo' has no setting"))
                assert "Input should" not in line


def test_a_preset_is_found_by_a_name_like_its_own() -> None:
    with pytest.raises(UserError, match=r"named 'dmeo'; did you mean demo\?"):
        read_recipe("dmeo")
