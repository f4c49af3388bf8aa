"""How much our logits, losses and gradients differ from those of `transformers`, for each head.

    python benchmarks/parity.py
    python benchmarks/parity.py --device cuda

Random weights, ragged batches on our side and padded ones on theirs, no dropout, float32. The tests
in tests/bert_core/test_parity.py check the same figures against limits on a CPU. On a GPU both
sides run there, with matrix products in full float32.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import transformers

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.alternating import report
from bert_core.batch import LabelledBatch, PretrainingBatch, RaggedBatch, next_token_labels
from bert_core.config import encoder_config
from bert_core.hugging_face import export_model
from bert_core.hugging_face.tensors import to_hugging_face
from bert_core.model.catalogue import TrainableModel, build_model

VOCAB_SIZE = 2000
LENGTHS = (128, 7, 128, 64, 33, 128)
SIZES = ("tiny", "mini", "small")
HEADS = {
    "pretraining": ("AutoModelForPreTraining", {}),
    "language_model": ("BertLMHeadModel", {}),
    "next_sentence": ("AutoModelForNextSentencePrediction", {}),
    "sequence_classification": ("AutoModelForSequenceClassification", {"num_labels": 3}),
    "regression": ("AutoModelForSequenceClassification", {}),
    "multiple_choice": ("AutoModelForMultipleChoice", {}),
    "token_classification": ("AutoModelForTokenClassification", {"num_labels": 5}),
    "span_prediction": ("AutoModelForQuestionAnswering", {}),
}


def tokens_and_labels(head: str) -> PretrainingBatch | LabelledBatch:
    random = np.random.default_rng(0)
    # Padding would take part in the reference's softmax: with equal lengths there is none.
    lengths = np.array((96,) * 6 if head == "span_prediction" else LENGTHS)
    ids = random.integers(5, VOCAB_SIZE, size=lengths.sum())
    tokens = RaggedBatch.from_arrays(ids, lengths // 2, lengths)
    if head == "pretraining":
        positions = np.sort(random.choice(ids.size, ids.size // 7, replace=False))
        return PretrainingBatch(
            tokens=tokens,
            masked_positions=torch.from_numpy(positions),
            masked_labels=torch.from_numpy(random.integers(5, VOCAB_SIZE, positions.size)),
            next_sentence_labels=torch.from_numpy(random.integers(0, 2, lengths.size)),
        )
    labels = {
        "language_model": lambda: next_token_labels(tokens),
        "regression": lambda: random.random(lengths.size),
        "multiple_choice": lambda: np.array([2, 0]),
        "token_classification": lambda: random.integers(0, 5, ids.size),
        "span_prediction": lambda: np.sort(random.integers(0, 96, (lengths.size, 2))),
    }.get(head, lambda: random.integers(0, 2, lengths.size))()
    return LabelledBatch.from_arrays(tokens, labels)


def their_inputs(batch: PretrainingBatch | LabelledBatch, head: str) -> dict[str, torch.Tensor]:
    tokens = batch.tokens

    def pad(values: torch.Tensor, padding: int) -> torch.Tensor:
        return tokens.padded(values, padding)

    inputs = {
        "input_ids": pad(tokens.input_ids, 0),
        "token_type_ids": pad(tokens.token_type_ids, 0),
        "attention_mask": pad(torch.ones_like(tokens.input_ids), 0),
    }
    if isinstance(batch, PretrainingBatch):
        labels = torch.full((tokens.num_tokens,), -100)
        labels[batch.masked_positions] = batch.masked_labels
        assert batch.next_sentence_labels is not None
        pairs = {"next_sentence_label": batch.next_sentence_labels}
        return {**inputs, "labels": pad(labels, -100), **pairs}
    if head == "multiple_choice":
        inputs = {name: value.unflatten(0, (2, 3)) for name, value in inputs.items()}
    if head == "span_prediction":
        ends = {"start_positions": batch.labels[:, 0], "end_positions": batch.labels[:, 1]}
        return {**inputs, **ends}
    if head == "language_model":
        return {**inputs, "labels": pad(tokens.input_ids, -100)}
    if head == "token_classification":
        return {**inputs, "labels": pad(batch.labels, -100)}
    return {**inputs, "labels": batch.labels}


def logits_pairs(
    model: TrainableModel, batch: PretrainingBatch | LabelledBatch, expected: object
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    tokens = batch.tokens
    is_token = tokens.padded(torch.ones_like(tokens.input_ids), 0).bool()
    every = torch.arange(tokens.num_tokens, device=tokens.input_ids.device)
    if isinstance(batch, PretrainingBatch):
        mlm, nsp = model(tokens, every)
        theirs = expected.prediction_logits[is_token], expected.seq_relationship_logits
        return list(zip((mlm, nsp), theirs, strict=True))
    if model.head_name == "language_model":
        return [(model(tokens, every), expected.logits[is_token])]
    ours = model(tokens)
    if model.head_name == "span_prediction":
        both = torch.stack((expected.start_logits, expected.end_logits), dim=-1)
        return [(ours, both[is_token])]
    theirs = expected.logits[is_token] if ours.shape[0] == tokens.num_tokens else expected.logits
    return [(ours, theirs.reshape(ours.shape))]


def differences(head: str, size: str, device: str = "cpu") -> tuple[float, float, float]:
    """Largest difference of the logits, of the loss, and of any gradient."""
    reference_name, settings = HEADS[head]
    torch.manual_seed(0)
    config = encoder_config(size, VOCAB_SIZE, causal=head == "language_model")
    model = build_model(head, config, **settings)
    assert isinstance(model, TrainableModel)
    with tempfile.TemporaryDirectory() as folder:
        export_model(Path(folder) / "model", model)
        reference_class = getattr(transformers, reference_name)
        reference = reference_class.from_pretrained(Path(folder) / "model").eval().to(device)
    model.to(device)
    batch = tokens_and_labels(head)
    inputs = {name: value.to(device) for name, value in their_inputs(batch, head).items()}
    batch = batch.to(device)
    expected = reference(**inputs)
    with torch.no_grad():
        pairs = logits_pairs(model, batch, expected)
    logits = max(float((a - b).detach().abs().max()) for a, b in pairs)
    loss = torch.stack([total / count for total, count in model.loss_sums(batch).values()]).sum()
    loss.backward()
    expected.loss.backward()
    named = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    ours = to_hugging_face(named, head)
    gradients = max(
        float((ours[name] - p.grad).abs().max())
        for name, p in reference.named_parameters()
        if p.grad is not None
    )
    return logits, abs(float(loss.detach() - expected.loss.detach())), gradients


def parity_table(device: str, sizes: Sequence[str] = SIZES) -> tuple[list[str], float]:
    """The differences of every head and size, and the largest of them."""
    transformers.utils.logging.disable_progress_bar()
    torch.set_float32_matmul_precision("highest")
    lines = ["| head | size | logits | loss | gradients |", "|---|---|---|---|---|"]
    worst = 0.0
    for head in HEADS:
        for size in sizes:
            found = differences(head, size, device)
            logits, loss, gradients = found
            lines.append(f"| {head} | {size} | {logits:.1e} | {loss:.1e} | {gradients:.1e} |")
            worst = max(worst, *found)
    return lines, worst


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    device = parser.parse_args().device
    lines, _ = parity_table(device)
    version = (
        f"Largest absolute differences from transformers {transformers.__version__}, float32, "
        f"{device}."
    )
    name = "parity" if device == "cpu" else "parity_cuda"
    report(name, "Parity with the reference", [version, "", *lines])


if __name__ == "__main__":
    main()
