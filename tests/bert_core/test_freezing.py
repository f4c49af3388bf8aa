"""Fine-tuning with frozen parameters against `transformers` and torch's AdamW, step by step."""

import numpy as np
import pytest
import torch
import transformers

from bert_core.batch import LabelledBatch
from bert_core.hugging_face import export_model
from bert_core.hugging_face.tensors import to_hugging_face
from bert_core.model.catalogue import PretrainingModel, SequenceClassifier
from bert_core.model.preparation import freeze
from bert_core.training.loop import train
from bert_core.training.optimization import AdamW
from bert_core.training.optimizer import OptimizationConfig
from bert_core.training.state import Position, load_checkpoint, save_checkpoint
from tests.bert_core.batches import pretraining_batch, ragged_batch, small_config
from tests.bert_core.test_parity import padded

NUM_STEPS, LEARNING_RATE, SEED = 4, 3e-3, 5


def only_vectors(model):
    """Train biases and normalizations alone, those of the head too."""
    for parameter in model.parameters():
        parameter.requires_grad_(parameter.ndim == 1)


FREEZING = {
    "nothing": lambda model: None,
    "embeddings": lambda model: freeze(model, embeddings=True),
    "lower layers": lambda model: freeze(model, layers=1),
    "embeddings and lower layers": lambda model: freeze(model, embeddings=True, layers=2),
    "encoder": lambda model: freeze(model, embeddings=True, layers=3),
    "vectors alone": only_vectors,
    "one matrix alone": lambda model: [
        p.requires_grad_(n == "encoder.layers.1.feed_forward.widen.weight")
        for n, p in model.named_parameters()
    ],
}


def new_model(freezing, dropout=0.0):
    torch.manual_seed(0)
    config = small_config(num_layers=3, hidden_dropout=dropout, attention_dropout=dropout)
    model = SequenceClassifier(config, 3)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    FREEZING[freezing](model)
    return model


def new_run(freezing, dropout=0.0):
    model = new_model(freezing, dropout)
    config = OptimizationConfig(
        num_steps=NUM_STEPS, learning_rate=LEARNING_RATE, schedule="constant", weight_decay=0.1
    )
    return model, AdamW(model, config)


def batch(step):
    tokens = ragged_batch((12, 5, 30, 12), seed=step)
    return LabelledBatch.from_arrays(tokens, np.random.default_rng(step).integers(0, 3, 4))


def micro_batches(step):
    yield 0, batch(2 * step)
    yield 1, batch(2 * step + 1)


def weights(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def trainable(model):
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


@pytest.mark.parametrize("freezing", FREEZING)
def test_training_equals_the_reference_and_what_is_frozen_keeps_every_bit(tmp_path, freezing):
    model, optimizer = new_run(freezing)
    before, trained = weights(model), trainable(model)
    export_model(tmp_path / "exported", model)
    reference = transformers.BertForSequenceClassification.from_pretrained(
        tmp_path / "exported"
    ).eval()
    names = to_hugging_face({name: p.detach() for name, p in model.named_parameters()
                             if p.requires_grad})  # fmt: skip
    for name, parameter in reference.named_parameters():
        parameter.requires_grad_(name in names)
    parameters = [p for p in reference.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": 0.1},
        {"params": [p for p in parameters if p.ndim == 1], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    theirs = torch.optim.AdamW(groups, lr=LEARNING_RATE, eps=1e-6)
    reports = train(model, optimizer, micro_batches, seed=SEED, precision="float32")
    for report in reports:
        theirs.zero_grad()
        for _, part in micro_batches(report.step):
            (reference(**padded(part.tokens), labels=part.labels).loss / 2).backward()
        norm = torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        theirs.step()
        assert report.grad_norm.item() == pytest.approx(norm.item(), rel=1e-4)
    for name, tensor in model.named_parameters():
        moved = not torch.equal(tensor, before[name])
        assert moved == (name in trained), name
    ours = to_hugging_face(dict(model.state_dict()))
    for name, tensor in reference.named_parameters():
        torch.testing.assert_close(ours[name], tensor, atol=2e-4, rtol=0)


def test_tied_embeddings_are_frozen_in_pretraining_too():
    torch.manual_seed(0)
    model = PretrainingModel(small_config())
    assert "encoder.embeddings.token" in freeze(model, embeddings=True)
    before = weights(model)
    optimizer = AdamW(model, OptimizationConfig(num_steps=2, learning_rate=1e-2))
    for _ in train(model, optimizer, lambda step: [(0, pretraining_batch(seed=step))], seed=0):
        pass
    after = weights(model)
    assert torch.equal(after["encoder.embeddings.token"], before["encoder.embeddings.token"])
    assert not torch.equal(after["vocabulary_head.bias"], before["vocabulary_head.bias"])


def test_a_checkpoint_of_a_run_with_other_parts_frozen_is_refused(tmp_path):
    model, optimizer = new_run("embeddings")
    with torch.no_grad():
        optimizer.arena.values.add_(1.0)  # so that a weight that was loaded would show
    save_checkpoint(tmp_path / "one", model, optimizer, Position(seed=0, step=1))
    other, other_optimizer = new_run("lower layers")
    before = weights(other)
    with pytest.raises(ValueError, match=r"missing .*embeddings\.token.* freeze exactly what"):
        load_checkpoint(tmp_path / "one", other, other_optimizer)
    assert all(torch.equal(before[name], tensor) for name, tensor in weights(other).items())


@pytest.mark.parametrize("layers", [4, -1])
def test_freezing_what_is_not_there_is_refused(layers):
    with pytest.raises(ValueError, match=rf"layers must lie in \[0, 3\], got {layers}"):
        freeze(new_model("nothing"), layers=layers)
