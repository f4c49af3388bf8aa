"""The preset `continue`, from the encoder that a whole run has registered."""

import pytest

from flows.end_to_end import end_to_end
from pipelines.recipes.files import read_recipe
from tests.flows.conftest import WholeRun

pytestmark = pytest.mark.slow


def test_pretraining_goes_on_from_a_registered_encoder(whole_run: WholeRun) -> None:
    small = read_recipe(str(whole_run.recipe))
    overrides = [
        # A few steps make no champion.
        "pretraining.encoder=models:/bertsmith-encoder@candidate",
        f"runtime.home={whole_run.home}", f"corpus={small.corpus.model_dump_json()}",
        "examples.max_tokens=64",
        "pretraining.num_steps=4", "pretraining.global_batch_size=8",
        "pretraining.micro_batch_size=4", "pretraining.evaluation_examples=16",
        "pretraining.final_evaluation_examples=16",
    ]  # fmt: skip
    report = end_to_end(read_recipe("continue", overrides), "pretraining")
    names = [record.name for record in report.records]
    assert names == ["encoder to start from", "corpus", "vocabulary", "examples", "pretraining"]
    before, after = whole_run.report.artifact("pretraining"), report.artifact("pretraining")
    vocabulary = report.artifact("vocabulary")
    assert vocabulary.statistics["size"] == small.vocabulary.size
    assert after.manifest.inputs["encoder"] == vocabulary.manifest.inputs["encoder"]
    assert after.manifest.settings["size"] == "tiny"
    # It begins where the other ended, and has hardly moved since.
    assert abs(after.statistics["eval/mlm_loss"] - before.statistics["eval/mlm_loss"]) < 0.5
