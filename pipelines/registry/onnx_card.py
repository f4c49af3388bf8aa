"""What an ONNX export was found to be, and the card that says so beside it."""

from dataclasses import dataclass
from pathlib import Path

from bert_core.model.catalogue import Model
from bert_core.onnx import INPUTS, OPSET, output_names


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """An ONNX file beside the model that it was made of."""

    file: str
    num_bytes: int
    difference: float  # the largest of any value of any output
    magnitude: float  # the largest value that the model gave
    score: float | None  # None where there are no held-out items
    sequences_per_second: float  # in ONNX Runtime, with a thread for each core


@dataclass(frozen=True, slots=True, kw_only=True)
class OnnxExport:
    """A model that was written as ONNX, and how it was checked."""

    folder: Path
    called: str  # `an encoder model`
    num_parameters: int
    items: str  # what was asked, such as `872 held-out items`
    metric: str  # empty where there are no held-out items
    score: float | None  # of the model itself
    files: tuple[Measured, ...]  # model.onnx, then model_quantized.onnx if that was asked for

    @property
    def lines(self) -> list[str]:
        """A line for each file: its size, its score, its speed and its largest difference."""
        found = []
        for each in self.files:
            score = "" if each.score is None else f"{self.metric} {each.score:.4f}, "
            found.append(
                f"{each.file}: {each.num_bytes / 1e6:,.1f} MB, {score}"
                f"{each.sequences_per_second:,.1f} sequences a second, largest difference "
                f"{each.difference:.2g} of values up to {each.magnitude:.3g}"
            )
        return found


_USE = """```python
import onnxruntime
from tokenizers import Tokenizer

tokenizer = Tokenizer.from_file("tokenizer.json")
tokenizer.encode_special_tokens = True  # "[SEP]" in a text is text
session = onnxruntime.InferenceSession("{file}")
encoded = tokenizer.encode("a text")
outputs = session.run(None, {{
    "input_ids": {rows}[encoded.ids]{ends},
    "attention_mask": {rows}[encoded.attention_mask]{ends},
    "token_type_ids": {rows}[encoded.type_ids]{ends},
}})
```"""


def onnx_card(export: OnnxExport, reference: str, model: Model) -> str:
    """Markdown: what was written, how it was checked, what goes in and comes out, how to ask it."""
    config, is_choice = model.config, model.head_name == "multiple_choice"
    axes = "batch, choices, tokens" if is_choice else "batch, tokens"
    checked = "\n".join(f"- {line}" for line in export.lines)
    score = (
        "No score was computed."
        if export.score is None
        else f"The model itself has the {export.metric} {export.score:.4f}."
    )
    rows, ends = ("[[", "]]") if is_choice else ("[", "]")
    return f"""# {reference}

This is {export.called} with {export.num_parameters:,} parameters, written by Bertsmith as ONNX
(opset {OPSET}).

## Checked

ONNX Runtime answered {export.items}, beside the model that was exported. {score}

{checked}

## Inputs and outputs

- Inputs: {", ".join(f"`{name}`" for name in INPUTS)}, int64 [{axes}], padded on the right, at most
  {config.max_position_embeddings} tokens.
- Outputs: {", ".join(f"`{name}`" for name in output_names(model))}, float32. `id2label` in
  config.json names the classes, if there are any.

## Use

{_USE.format(file=export.files[-1].file, rows=rows, ends=ends)}
"""
