"""A run ends after the stage that it is told, and what cannot be reached is refused."""

from types import SimpleNamespace
from typing import Any, get_args

import pytest

from flows.chain import build_chain
from flows.checks import check_run
from pipelines.errors import UserError
from pipelines.recipes.files import read_recipe
from pipelines.recipes.recipe import Recipe, Until
from pipelines.stage import Stage

WITH_ENCODER = [
    "finetuning.encoder=an-encoder", "dataset.source.path=rows.csv",
    "finetuning.compare_with_random=false",
]  # fmt: skip


class Recorded:
    """A run that builds nothing and remembers which stages it was told to build."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe, self.context, self.tracker = recipe, None, None
        self.artifacts: dict[str, Any] = {}
        self.titles: list[str] = []

    def build(self, stage: Stage, function: object, *inputs: object) -> str:
        self.titles.append(stage.title)
        return stage.name

    def stage(self, title: str, function: object, *inputs: object, **options: object) -> Any:
        self.titles.append(title)
        return SimpleNamespace(fingerprint="f" * 32)


@pytest.mark.parametrize("until", get_args(Until))
def test_a_run_ends_after_the_stage_that_it_is_told(until: Until) -> None:
    run = Recorded(read_recipe("demo"))
    build_chain(run, until)  # type: ignore[arg-type]
    last = "evaluation" if until == "registration" else until
    expected = [
        "corpus", "vocabulary", "examples", "pretraining", "dataset", "fine-tuning",
        "fine-tuning, random", "evaluation",
    ]  # fmt: skip
    ends = {"finetuning": "fine-tuning, random"}.get(last, last)
    assert run.titles == expected[: expected.index(ends) + 1]


def test_without_labels_the_chain_ends_with_the_encoder() -> None:
    run = Recorded(read_recipe("own-text", ["corpus.sources=[{kind: text, paths: [a]}]"]))
    build_chain(run, "registration")  # type: ignore[arg-type]
    assert run.titles == ["corpus", "vocabulary", "examples", "pretraining"]


def test_an_existing_encoder_takes_the_place_of_what_comes_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("flows.chain.existing_encoder", lambda name, context: name)
    run = Recorded(read_recipe("own-encoder", WITH_ENCODER))
    build_chain(run, "evaluation")  # type: ignore[arg-type]
    assert run.titles == ["encoder to start from", "dataset", "fine-tuning", "evaluation"]
    assert run.artifacts == {"pretraining": "f" * 32}
    assert run.recipe.finetuning.encoder == "f" * 32


@pytest.mark.parametrize(
    ("preset", "overrides", "until", "sentence"),
    [
        ("own-encoder", WITH_ENCODER, "pretraining", "with finetuning.encoder nothing is built"),
        ("own-text", [], "evaluation", "evaluation needs labelled texts"),
        ("own-text", ["examples.objective=clm", "pretraining.mask_fraction=null",
                      "pretraining.final_mask_fraction=null"], "registration",
         "add --until pretraining"),
    ],
)  # fmt: skip
def test_what_cannot_be_reached_is_refused_at_the_door(
    preset: str, overrides: list[str], until: Until, sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence):
        check_run(read_recipe(preset, overrides), until)
