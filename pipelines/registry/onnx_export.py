"""A registered model as ONNX, written and compared with the original."""

from importlib.util import find_spec
from pathlib import Path
from typing import Final

import torch

from bert_core.files import publish
from bert_core.inference.probing import PROBES
from bert_core.inference.texts import BATCH_TOKENS, encode_texts
from bert_core.model.catalogue import Model, count_parameters, described
from bert_core.onnx import (
    INPUTS,
    MODEL_FILE,
    OPSET,
    OnnxModel,
    encoder_alone,
    output_names,
    write_onnx_folder,
)
from bert_core.vocabulary import WordPieceTokenizer
from pipelines.errors import UserError
from pipelines.registry.exchange import writing_to
from pipelines.registry.opening import open_model
from pipelines.tracking.tracker import Tracker

# Of the model's largest output, or of 1 where that is less: float32 sums in another order.
MOST_DIFFERENT: Final = 1e-4
_LIBRARIES: Final = ("onnx", "onnxscript", "onnxruntime")


def export_onnx_version(
    tracker: Tracker, reference: str, target: Path, *, pooling: str | None
) -> str:
    """Write the model that `reference` names as the new folder `target`; says what it wrote.

    ONNX Runtime answers some texts, and its values must be the model's. With `pooling` the encoder
    alone is written. Raises UserError, and leaves nothing behind, where any of this does not hold.
    """
    missing = [name for name in _LIBRARIES if find_spec(name) is None]
    if missing:
        raise UserError(f"ONNX needs {', '.join(missing)}; pip install 'bertsmith[onnx]'")
    model, tokenizer = open_model(tracker, reference)
    described_as = ""

    def write(draft: Path) -> None:
        nonlocal described_as
        write_onnx_folder(draft, model, tokenizer)
        checked = _checked(OnnxModel(draft / MODEL_FILE, model), tokenizer)
        size = f"{count_parameters(model):,} parameters"
        described_as = f"{described(model.head_name)} with {size}; {checked}"
        card = _card(described_as, reference, model)
        (draft / "README.md").write_text(card, encoding="utf-8")

    with writing_to(target):
        if pooling is not None:
            model = encoder_alone(model, pooling)
        publish(target, write)
    return described_as


def _checked(onnx: OnnxModel, tokenizer: WordPieceTokenizer) -> str:
    """How the file was compared with its model; ValueError where it gives other values."""
    texts = encode_texts(tokenizer, PROBES, onnx.model.config.max_position_embeddings)
    with torch.inference_mode():
        for _, tokens in texts.batches(BATCH_TOKENS):
            onnx.compare(tokens)
    if onnx.difference > MOST_DIFFERENT * max(1.0, onnx.magnitude):
        raise ValueError(
            f"ONNX Runtime computes other values than the model: one differs by "
            f"{onnx.difference:.3g}, more than {MOST_DIFFERENT:g} of the largest "
            f"({onnx.magnitude:.3g}); nothing was written"
        )
    return (
        f"ONNX Runtime answers {onnx.num_sequences} texts like the model: the largest difference "
        f"is {onnx.difference:.2g} of values up to {onnx.magnitude:.3g}"
    )


def _card(described_as: str, reference: str, model: Model) -> str:
    """Markdown: what was written, how it was checked, its inputs and outputs, how to use it."""
    is_choice = model.head_name == "multiple_choice"
    axes = "batch, choices, tokens" if is_choice else "batch, tokens"
    rows, ends = ("[[", "]]") if is_choice else ("[", "]")
    return f"""# {reference}

Written by Bertsmith as ONNX (opset {OPSET}): {described_as}.

- Inputs: {", ".join(f"`{name}`" for name in INPUTS)}, int64 [{axes}], padded on the right, at most
  {model.config.max_position_embeddings} tokens.
- Outputs: {", ".join(f"`{name}`" for name in output_names(model))}, float32. `id2label` in
  config.json names the classes, if there are any.

```python
import onnxruntime
from tokenizers import Tokenizer

tokenizer = Tokenizer.from_file("tokenizer.json")
tokenizer.encode_special_tokens = True  # "[SEP]" in a text is text
session = onnxruntime.InferenceSession("{MODEL_FILE}")
encoded = tokenizer.encode("a text")
outputs = session.run(None, {{
    "input_ids": {rows}[encoded.ids]{ends},
    "attention_mask": {rows}[encoded.attention_mask]{ends},
    "token_type_ids": {rows}[encoded.type_ids]{ends},
}})
```
"""
