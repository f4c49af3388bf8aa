"""Two phases in one run: short examples, then those of the full length; any step is found alone."""

from dataclasses import replace

import pytest
import torch

from pipelines.errors import UserError
from pipelines.recipes.files import read_recipe
from pipelines.settings import RuntimeSettings
from pipelines.stages.examples.batches import ExampleReader, micro_batches
from pipelines.stages.examples.settings import ExampleSettings
from pipelines.stages.examples.stage import build_examples
from pipelines.stages.pretraining.settings import PretrainingSettings, phases_of
from pipelines.stages.pretraining.stage import step_batches
from pipelines.store import ArtifactStore

TWO_PHASES = PretrainingSettings(
    num_steps=10, short_steps_fraction=0.7, global_batch_size=8, micro_batch_size=4,
    short_global_batch_size=20, short_micro_batch_size=6,
)  # fmt: skip


@pytest.fixture(scope="module")
def examples(small_corpus, small_vocabulary, small_context):
    settings = ExampleSettings(max_tokens=64, short_tokens=16, num_passes=2, shard_tokens=1000)
    return build_examples(settings, small_corpus, small_vocabulary, small_context)


def test_the_text_is_written_twice_in_two_lengths(examples, small_examples):
    short, full = ExampleReader(examples, "short"), ExampleReader(examples, "train")
    assert (short.max_tokens, full.max_tokens) == (16, 64)
    assert len(short.pass_sizes) == len(full.pass_sizes) == 2
    assert len(short) > 2 * len(full)
    statistics = examples.statistics
    assert statistics["short"]["corpus_tokens"] == statistics["train"]["corpus_tokens"]
    assert statistics["short"]["mean_tokens"] <= 16 < statistics["train"]["mean_tokens"]
    assert statistics["heldout"] == small_examples.statistics["heldout"]


def test_a_short_example_depends_on_no_worker(
    examples, small_corpus, small_vocabulary, small_context, tmp_path
):
    alone = replace(
        small_context, store=ArtifactStore(tmp_path), runtime=RuntimeSettings(num_workers=1)
    )
    settings = ExampleSettings.model_validate(examples.manifest.settings)
    again = build_examples(settings, small_corpus, small_vocabulary, alone)
    assert again.names("short-") == examples.names("short-")
    for name in again.names("short-"):
        assert again.manifest.files[name].sha256 == examples.manifest.files[name].sha256


def test_phases_follow_each_other_and_cut_their_steps_as_they_say():
    short, full = phases_of(TWO_PHASES)
    assert (short.examples, short.first_step, short.num_steps) == ("short", 0, 7)
    assert (full.examples, full.first_step, full.num_steps) == ("train", 7, 3)
    assert (short.cut.num_micro_batches, full.cut.num_micro_batches) == (4, 2)
    assert [phase.examples for phase in phases_of(PretrainingSettings())] == ["train"]
    all_short = TWO_PHASES.model_copy(update={"short_steps_fraction": 1.0})
    assert [phase.examples for phase in phases_of(all_short)] == ["short"]


@pytest.mark.parametrize("step", [0, 6, 7, 9])
def test_a_step_on_either_side_of_the_boundary_is_what_its_own_phase_gives(examples, step):
    readers = {name: ExampleReader(examples, name) for name in ("short", "train")}
    found = dict(step_batches(TWO_PHASES, readers, step))  # asked for alone, as after a restart
    kind, first, size, cut = ("short", 0, 20, 6) if step < 7 else ("train", 7, 8, 4)
    expected = dict(
        micro_batches(
            ExampleReader(examples, kind), seed=0, step=step - first, global_batch_size=size,
            micro_batch_size=cut,
        )
    )  # fmt: skip
    assert found.keys() == expected.keys()
    for number, batch in expected.items():
        assert torch.equal(found[number].tokens.input_ids, batch.tokens.input_ids)
        assert torch.equal(found[number].masked_positions, batch.masked_positions)
    assert max(batch.tokens.max_seqlen for batch in found.values()) <= (16 if step < 7 else 64)
    shared = {}
    for rank in range(2):
        shared |= dict(step_batches(TWO_PHASES, readers, step, rank, 2))
    assert shared.keys() == expected.keys()


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["pretraining.short_steps_fraction=0.9"], "=0.9 needs examples.short_tokens"),
        (["examples.short_tokens=128"], "short_tokens=128 must be less than max_tokens=128"),
    ],
)
def test_phases_without_their_examples_are_refused(overrides, sentence):
    with pytest.raises(UserError, match=sentence):
        read_recipe("demo", overrides)
