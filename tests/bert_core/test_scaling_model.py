"""The scaling model counts what the encoder has, and its page says what it computes."""

from pathlib import Path

import pytest
import torch

from benchmarks.pretraining_batches import VOCAB_SIZE, operations
from benchmarks.scaling_model import Card, Job, Network, step_of
from benchmarks.scaling_tables import A100_NETWORK, GLOO, H200, H200_NETWORK, MEASURED, tables
from bert_core.batch import PretrainingBatch
from bert_core.config import encoder_config
from bert_core.model.catalogue import PretrainingModel, count_parameters
from bert_core.ragged import RaggedBatch

PAGE = Path(__file__).parents[2] / "docs" / "scaling.md"
SIZES = ["tiny", "mini", "base", "large"]


def job(size: str, sequences_per_step: int = 1024, micro_batch: int = 128) -> Job:
    return Job(size=size, sequences_per_step=sequences_per_step, micro_batch=micro_batch)


@pytest.mark.parametrize("size", SIZES)
def test_parameters_are_those_of_the_model(size: str) -> None:
    with torch.device("meta"):
        model = PretrainingModel(encoder_config(size, VOCAB_SIZE))
    assert job(size).parameters == count_parameters(model)
    layer = sum(parameter.numel() for parameter in model.encoder.layers[0].parameters())
    assert job(size).layer_parameters == layer


@pytest.mark.parametrize("size", SIZES)
def test_operations_are_those_of_a_batch_of_full_length(size: str) -> None:
    num_sequences, length, masked = 3, 128, 19
    ids = torch.arange(num_sequences * length)
    first = torch.arange(masked)
    positions = torch.cat([first + length * number for number in range(num_sequences)])
    batch = PretrainingBatch(
        tokens=RaggedBatch.from_arrays(ids, [64] * num_sequences, [length] * num_sequences),
        masked_positions=positions,
        masked_labels=positions,
        next_sentence_labels=torch.zeros(num_sequences, dtype=torch.int64),
    )
    counted = operations(encoder_config(size, VOCAB_SIZE), batch)
    assert job(size).operations_per_sequence * num_sequences == pytest.approx(counted)


def test_an_exchange_takes_what_its_slowest_links_take() -> None:
    network = Network(name="n", cards_per_node=8, inside=1e9, between=1e9, latency=0.0)
    assert network.all_reduce(1e9, 1) == 0.0
    assert network.all_reduce(1e9, 8) == pytest.approx(2 * 7 / 8)
    assert network.all_reduce(1e9, 16) == pytest.approx(2 * 7 / 8 + 2 * 1 / 2)


def test_what_computing_hides_is_not_waited_for_but_the_embeddings_are() -> None:
    slow = Card(name="slow", sustained=1e12, memory=1e12)
    step = step_of(job("base"), slow, H200_NETWORK, 8)
    embeddings = H200_NETWORK.all_reduce(job("base").embedding_parameters * 4, 8)
    last_layer = H200_NETWORK.all_reduce(job("base").layer_parameters * 4, 8)
    assert step.exposed == pytest.approx(embeddings + last_layer)
    assert step.exposed < step.exchange / 2
    fast = Card(name="fast", sustained=1e30, memory=1e15)
    bare = step_of(job("base"), fast, H200_NETWORK, 8)
    assert bare.exposed == pytest.approx(bare.exchange)
    assert bare.limit == "exchange"


def test_a_rank_without_a_sequence_is_refused() -> None:
    with pytest.raises(ValueError, match="got 8 for 16 ranks"):
        step_of(job("base", sequences_per_step=8), H200, H200_NETWORK, 16)


@pytest.mark.parametrize("measured", MEASURED, ids=lambda measured: measured.size)
def test_two_ranks_on_a_cpu_take_what_the_model_says(measured) -> None:
    assert step_of(measured.job, measured.card, GLOO, 2).seconds == pytest.approx(
        measured.two_ranks, rel=0.05
    )


def test_nvidia_s_256_cards_are_met_within_six_percent() -> None:
    large = Job(size="large", sequences_per_step=65_536, micro_batch=64, gradient_bytes=2)
    card = Card.measured("A100", large, 4_591 / 8, memory=1.5e12)
    found = step_of(large, card, A100_NETWORK, 256).sequences_per_second
    assert found == pytest.approx(138_294, rel=0.06)


def test_the_page_holds_the_tables_as_they_are_computed() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for name, lines in tables().items():
        assert "\n".join(lines) in page, f"{name}: run benchmarks/scaling_tables.py"
