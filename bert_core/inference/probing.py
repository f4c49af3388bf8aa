"""A number that any change of a model's weights, vocabulary or arithmetic changes."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from bert_core.inference.texts import encode_texts
from bert_core.model.catalogue import LanguageModel, Model, PretrainingModel
from bert_core.vocabulary import WordPieceTokenizer

PROBES = (
    "The quick brown fox jumps over the lazy dog.",
    'In 1687, Newton\'s "Principia" cost 7 shillings; today it is worth $3,700,000.',
    "Où est la bibliothèque? Straße, señor, ŁÓDŹ and naïve café.",
    "東京で会いましょう。你好,世界。",
    "a b c [MASK] <b> </b> e-mail@example.org http://x.y/z?q=1&r=%20 x_1 == y**2 !!!",
    "Supercalifragilisticexpialidocious antidisestablishmentarianism.",
    "no",
    "long text " * 400,
)


@torch.inference_mode()
def probe(
    model: Model, tokenizer: WordPieceTokenizer, texts: Sequence[str] = PROBES
) -> tuple[float, int]:
    """The weighted root mean square of all outputs of `model` for `texts`, and their number.

    Outputs are its hidden states and those of its head, computed text by text in float32. Every
    position has another weight, so that swapped numbers show. Raises ValueError for what is no
    list of texts.
    """
    total, count = 0.0, 0
    for text in texts:
        encoded = encode_texts(tokenizer, [text], model.config.max_position_embeddings)
        _, tokens = next(encoded.batches(model.config.max_position_embeddings))
        tokens = tokens.to(model.device)
        everywhere = torch.arange(tokens.num_tokens, device=model.device)
        if isinstance(model, PretrainingModel | LanguageModel):
            outputs = model(tokens, everywhere)
        else:
            outputs = model(tokens)
        for values in (model.encoder(tokens), *_tensors(outputs)):
            numbers = values.double().cpu().flatten()
            weights = 1.5 + torch.cos(torch.arange(numbers.numel(), dtype=torch.float64))
            total += float((weights * numbers).square().sum())
            count += numbers.numel()
    return math.sqrt(total / count), count


def _tensors(outputs: Tensor | tuple[Tensor | None, ...]) -> list[Tensor]:
    if isinstance(outputs, Tensor):
        return [outputs]
    return [values for values in outputs if values is not None]
