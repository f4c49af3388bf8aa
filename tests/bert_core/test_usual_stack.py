"""What benchmarks hold us against computes the same: no ratio rests on another task."""

import torch

from benchmarks.reference_batches import padded, padded_tokens, register_packed_attention
from benchmarks.usual_stack import Classification, Pretraining, load_ours, their_config
from bert_core.batch import LabelledBatch
from bert_core.model.catalogue import PretrainingModel, SequenceClassifier
from tests.bert_core.batches import LENGTHS, pretraining_batch, ragged_batch, small_config


def with_effect(model):
    """Weights far from those that make every token alike."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def gradients(model):
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def test_the_tuned_pretraining_step_computes_the_published_losses_and_gradients():
    ours, batch = with_effect(PretrainingModel(small_config())), pretraining_batch()
    attention = register_packed_attention()
    tuned = Pretraining(their_config(ours.config, attn_implementation=attention)).eval()
    as_used = Pretraining(their_config(ours.config)).eval().reference
    load_ours(tuned.reference, ours)
    load_ours(as_used, ours)
    loss = torch.stack([s / n for s, n in ours.loss_sums(batch).values()]).sum()
    packed = tuned(*tuned.arguments(batch))
    plain = as_used(**padded(batch)).loss
    torch.testing.assert_close(packed, loss, atol=1e-5, rtol=0)
    torch.testing.assert_close(plain, loss, atol=1e-5, rtol=0)
    packed.backward()
    plain.backward()
    expected = gradients(as_used)
    found = gradients(tuned.reference)
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, atol=1e-5, rtol=0)


def test_the_tuned_classification_step_computes_the_published_loss():
    ours = with_effect(SequenceClassifier(small_config(), 3))
    batch = LabelledBatch.from_arrays(ragged_batch(), [0, 1, 2, 0, 1, 2][: len(LENGTHS)])
    config = their_config(
        ours.config, attn_implementation=register_packed_attention(), num_labels=3
    )
    tuned = Classification(config).eval()
    load_ours(tuned.reference, ours)
    as_used = Classification(their_config(ours.config, num_labels=3)).eval().reference
    load_ours(as_used, ours)
    ((total, count),) = ours.loss_sums(batch).values()
    packed = tuned(*tuned.arguments(batch))
    plain = as_used(**padded_tokens(batch.tokens), labels=batch.labels).loss
    torch.testing.assert_close(packed, total / count, atol=1e-5, rtol=0)
    torch.testing.assert_close(plain, total / count, atol=1e-5, rtol=0)
