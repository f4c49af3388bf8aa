"""A training that cannot fit its node is refused in a sentence, before its first step."""

import psutil
import pytest
import torch
from pyarrow.fs import LocalFileSystem

from bert_core.batch import LabelledBatch, PretrainingBatch, RaggedBatch
from bert_core.config import encoder_config
from bert_core.model.catalogue import build_model
from bert_core.training.optimization import OptimizationConfig, state_size
from pipelines.artifacts import ArtifactStore
from pipelines.artifacts.attempts.checkpoints import CheckpointFolder
from pipelines.core.cluster.ranks import Ranks
from pipelines.core.errors import UserError
from pipelines.core.stage import StageContext
from pipelines.stages.pretraining.settings import PretrainingSettings
from pipelines.stages.pretraining.stage import build_encoder
from pipelines.training.launch import Launch, launch
from pipelines.training.memory import Room, fitting_memory, node_memory, room_on
from pipelines.training.placement import StepCut
from pipelines.training.settings import TrainingSettings
from pipelines.training.worker import Work, run

CPU = torch.device("cpu")


def huge_batch(num_sequences: int, length: int) -> PretrainingBatch:
    """A batch that takes no memory itself: views of a single number."""
    size, zero = num_sequences * length, torch.zeros(1, dtype=torch.int64)
    tokens = RaggedBatch(
        input_ids=zero.expand(size), token_type_ids=zero.expand(size),
        position_ids=zero.expand(size), cu_seqlens=zero.int().expand(num_sequences + 1),
        lengths=(length,) * num_sequences, max_seqlen=length,
    )  # fmt: skip
    masked = zero.expand(size // 7)
    return PretrainingBatch(tokens=tokens, masked_positions=masked, masked_labels=masked)


def told(batch, room, *, size="base", device=CPU, layers=0, **more):
    with torch.device("meta"):
        model = build_model("pretraining", encoder_config(size, 8_000), next_sentence=False)
    model.encoder.num_checkpointed_layers = layers
    return fitting_memory(
        model, [(0, huge_batch(2, 128)), (1, batch)], room,
        stage="pretraining", dtype=torch.bfloat16, device=device, **more,
    )  # fmt: skip


def test_the_largest_micro_batch_is_told_beside_the_memory_there_is():
    room = Room(num_bytes=23 << 30, of="its node", num_ranks=1)
    assert told(huge_batch(64, 128), room) == (
        "a step needs about 3.5 GiB of the 23.0 GiB of its node"
    )
    shared = Room(num_bytes=23 << 30, of="its node", num_ranks=4)
    assert told(huge_batch(64, 128), shared) == (
        "a step needs about 3.5 GiB for each of 4 ranks of the 23.0 GiB of its node"
    )


def test_what_cannot_fit_is_refused_and_told_what_to_lower():
    room = Room(num_bytes=23 << 30, of="its node", num_ranks=1)
    with pytest.raises(
        UserError,
        match=r"must fit the 23\.0 GiB of its node, found that it needs "
        r"about 6\d\.\d GiB; lower micro_batch_examples, or raise place.checkpointed_layers$",
    ):
        told(huge_batch(2_000, 128), room)  # fmt: skip
    shared = Room(num_bytes=23 << 30, of="its node", num_ranks=8)
    with pytest.raises(UserError, match=r"of 8 ranks; lower micro_batch_examples or place\.train"):
        told(huge_batch(64, 128), shared)
    small = Room(num_bytes=1 << 30, of="its GPU", num_ranks=1)
    with pytest.raises(
        UserError, match=r"of its GPU, .* optimizer alone take 1\.\d GiB: lower size"
    ):
        told(huge_batch(64, 128), small, device=torch.device("cuda"))
    with pytest.raises(UserError, match=r"GiB; lower micro_batch_examples$"):
        told(huge_batch(4_000, 128), room, layers=12)


def test_of_a_gpu_only_what_surely_cannot_fit_is_refused():
    room = Room(num_bytes=23 << 30, of="its GPU", num_ranks=1)
    line = told(huge_batch(2_000, 128), room, device=torch.device("cuda"))
    assert "of its GPU; should it not fit, lower micro_batch_examples, or raise place" in line


def test_a_save_that_gathers_a_divided_state_needs_room_too():
    room = Room(num_bytes=3 << 29, of="its node", num_ranks=1)
    batch = huge_batch(1, 128)
    assert told(batch, room, optimizer_buffers=1.0).startswith("a step needs about 1.")
    with pytest.raises(UserError, match=r"its weights and optimizer alone take .*: lower size"):
        told(batch, room, optimizer_buffers=1.0, gathered_buffers=2.5)


def test_the_largest_share_of_a_divided_state_counts():
    model = build_model("pretraining", encoder_config("tiny", 8_000), next_sentence=False)
    config = OptimizationConfig(num_steps=9, shard_optimizer_state=True, averaging_decay=0.9)
    size = state_size(model, config, num_ranks=4)
    table = model.encoder.embeddings.token.numel() / sum(p.numel() for p in model.parameters())
    # No share cuts the table: an even one would be 3 / 4.
    assert size.held == pytest.approx(3 * table, rel=0.01)
    assert size.held > 1.5
    assert size.sent == pytest.approx(size.held / 3, rel=0.01)
    assert state_size(model, config, num_ranks=4, num_together=4).held == pytest.approx(3 / 4)
    assert state_size(model, config, num_ranks=1) == (3.0, 0.0, 3.0)


def test_a_node_has_its_memory_or_what_its_container_allows(tmp_path):
    total, limit = psutil.virtual_memory().total, tmp_path / "memory.max"
    assert node_memory(limit) == total
    for written, expected in (("max", total), ("1048576", 1 << 20), (str(total * 2), total)):
        limit.write_text(f"{written}\n")
        assert node_memory(limit) == expected
    assert room_on(CPU, 3).num_bytes <= total
    assert room_on(CPU, 3).num_ranks == 3


def test_a_batch_of_labels_is_estimated_too():
    model = build_model("sequence_classification", encoder_config("tiny", 100), num_labels=2)
    tokens = huge_batch(32, 64).tokens
    batch = LabelledBatch(tokens=tokens, labels=torch.zeros(32, dtype=torch.int64), num_labels=32)
    room = Room(num_bytes=1 << 30, of="its node", num_ranks=1)
    line = fitting_memory(
        model, [(0, batch)], room, stage="finetuning", dtype=torch.float32, device=CPU
    )
    assert line == "a step needs about 42 MiB of the 1.0 GiB of its node"


@pytest.mark.slow
def test_a_real_training_tells_it(small_examples, small_vocabulary, local_ray, tmp_path):
    notes: list[str] = []
    context = StageContext(
        store=ArtifactStore(tmp_path), observe=lambda progress: notes.append(progress.note)
    )
    settings = PretrainingSettings(size="tiny", num_steps=2, examples_per_step=4)
    build_encoder(settings, small_examples, small_vocabulary, context)
    assert any(note.startswith("pretraining: a step needs about ") for note in notes)


@pytest.mark.slow
def test_a_real_training_that_cannot_fit_ends_with_the_sentence(local_ray, tmp_path):
    def must_not_be_read(step):
        raise AssertionError("what is read ahead would be thrown away")

    def worker(values):
        work = Work(
            stage="pretraining",
            section="pretraining",
            settings=TrainingSettings(),
            num_steps=2,
            evaluate_every_steps=2,
            build_model=lambda: build_model(
                "pretraining", encoder_config("tiny", 100), next_sentence=False
            ),
            micro_batches=must_not_be_read,
            batches_of=lambda step: iter([(0, huge_batch(1_000_000, 128))]),
            evaluate=lambda model: {},
            judge=lambda model: {},
        )
        return run(work, values)

    job = Launch(
        worker=worker,
        values={"precision": "float32", "run_id": None, "tracking_uri": None},
        name="huge",
        checkpoints=CheckpointFolder(str(tmp_path / "work"), LocalFileSystem()),
        cut=StepCut(section="pretraining", examples_per_step=1, micro_batch_examples=1),
    )
    context = StageContext(store=ArtifactStore(tmp_path), ranks=Ranks(workers=1))
    with pytest.raises(UserError, match=r"^a step of pretraining must fit .* lower micro_batch_ex"):
        launch(job, context, lambda checkpoint, told: told)
