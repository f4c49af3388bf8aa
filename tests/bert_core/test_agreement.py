"""Ranks start alike, or all of them stop with one sentence."""

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from bert_core.model.catalogue import SequenceClassifier
from bert_core.model.preparation import freeze
from bert_core.training.agreement import agree_on_start
from bert_core.training.loop import train
from bert_core.training.optimization import AdamW, OptimizationConfig, build_optimizer
from bert_core.training.ranks import checksum
from tests.bert_core.batches import pretraining_batch, small_config
from tests.bert_core.optimizer_runs import new_run
from tests.bert_core.ranks import run_ranks


def classifier(seed=0, layers=1, num_labels=2, **settings):
    torch.manual_seed(seed)
    model = SequenceClassifier(small_config(), num_labels)
    freeze(model, embeddings=True, layers=layers)
    return model, build_optimizer(model, OptimizationConfig(num_steps=9, **settings))


def advanced(rank, is_first, **settings):
    """A run after an update; if `is_first`, rank 1 has loaded another state than rank 0."""
    model, optimizer = classifier(**settings)
    optimizer.arena.gradients.fill_(0.1)
    optimizer.update(0.01)
    state = optimizer.state_dict()
    if is_first and rank == 1:
        optimizer.load_state_dict({**state, "num_updates": 5})
    return model, optimizer


def loaded(rank, is_other):
    """A divided state that was loaded; if `is_other`, by rank 1 from another run, as far along."""
    runs = []
    for gradient in (0.1, 0.2):
        _, saved = classifier()
        saved.arena.gradients.fill_(gradient)
        saved.update(0.01)
        runs.append(saved.state_dict())
    model, optimizer = classifier(shard_optimizer_state=True)
    optimizer.load_state_dict(runs[rank if is_other else 0])
    return model, optimizer


STARTS = {
    "other weights": lambda rank: classifier(seed=rank),
    "other weights, divided state": lambda rank: classifier(seed=rank, shard_optimizer_state=True),
    "equal states": lambda rank: advanced(rank, False, averaging_decay=0.9),
    "another layer frozen": lambda rank: classifier(layers=rank),
    "another head": lambda rank: classifier(num_labels=2 + rank),
    "another rate": lambda rank: classifier(learning_rate=1e-4 * (1 + rank)),
    "another optimizer": lambda rank: classifier(optimizer=("adamw", "lamb")[rank]),
    "another state": lambda rank: advanced(rank, True),
    "loaded divided states": lambda rank: loaded(rank, False),
    "another run's divided state": lambda rank: loaded(rank, True),
    "another divided state": lambda rank: advanced(rank, True, shard_optimizer_state=True),
}


def started(rank):
    results = {}
    for name, start in STARTS.items():
        model, optimizer = start(rank)
        try:
            agree_on_start(model, optimizer)
        except ValueError as error:
            results[name] = str(error)
        else:
            tensors = model.state_dict().values()
            results[name] = checksum(tensors, torch.device("cpu")).tolist()
    return results


def test_ranks_start_with_the_weights_of_the_first_or_refuse_alike():
    first, second = run_ranks(started, 2)
    assert first == second
    expected = checksum(classifier(seed=0)[0].state_dict().values(), torch.device("cpu")).tolist()
    assert first["other weights"] == first["other weights, divided state"] == expected
    assert isinstance(first["equal states"], list)
    assert isinstance(first["loaded divided states"], list)
    for name in ("another layer frozen", "another head", "another rate", "another optimizer"):
        assert first[name] == (
            "all ranks must start with the same model (names, shapes, what is frozen) and "
            "optimizer settings, found rank 1 to differ from rank 0; build and freeze the model "
            "alike on each of them"
        )
    for name in ("another state", "another divided state", "another run's divided state"):
        assert first[name] == (
            "all ranks must start with the same weights and optimizer state, found rank 1 to "
            "differ from rank 0; load the same checkpoint on each of them, or none"
        )


def trained_from_other_weights(rank):
    model, optimizer = new_run("adamw")
    with torch.no_grad():
        model.pooler.dense.weight.add_(rank)
    batches = [(rank, pretraining_batch(seed=rank))]
    for _ in train(model, optimizer, lambda step: batches, seed=0, num_steps=2):
        pass
    return optimizer.arena.values.tolist()


def test_a_training_begins_by_agreeing():
    first, second = run_ranks(trained_from_other_weights, 2)
    assert first == second


def test_a_checksum_sees_every_bit_and_every_place():
    device = torch.device("cpu")
    values = torch.arange(10.0)
    whole = checksum([values], device).tolist()
    assert checksum([values[:4], values[4:]], device).tolist() == whole
    assert checksum([values.flip(0)], device).tolist() != whole
    values[3] = torch.nextafter(values[3], torch.tensor(9.0))
    assert checksum([values], device).tolist() != whole
    checksum([torch.ones(3, dtype=torch.bool), torch.ones(3, dtype=torch.bfloat16)], device)


def wrapped(rank):
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

    def divided(model):
        fully_shard(model, mesh=torch.distributed.init_device_mesh("cpu", (1,)))
        return model

    wrappers = {
        "DistributedDataParallel": DistributedDataParallel,
        "FullyShardedDataParallel": lambda m: FullyShardedDataParallel(
            m, device_id=torch.device("cpu")
        ),
        "FSDPModule": divided,
    }
    said = {}
    for name, wrap in wrappers.items():
        model = wrap(torch.nn.Sequential(torch.nn.Linear(4, 4)))
        with pytest.raises(ValueError, match="needs the model without a wrapper") as refused:
            AdamW(model, OptimizationConfig(num_steps=1))
        said[name] = str(refused.value)
    return said


def test_wrapped_models_are_refused_with_the_reason():
    (said,) = run_ranks(wrapped, 1)
    for name, sentence in said.items():
        assert f"got {name}: " in sentence
        assert "the step adds gradients up over the ranks" in sentence
