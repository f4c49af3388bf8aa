"""What a loaded model can do with texts.

Everything here computes without dropout, in float32 unless a `precision` is given: equal weights
and texts give equal results in any process on the same machine. Results come in the order of the
texts. A text longer than the model can read loses its end, and the result says how many did.
"""

from bert_core.inference.answers import Answer, answer
from bert_core.inference.completion import complete
from bert_core.inference.embedding import Embedded, cosine_similarity, embed, nearest
from bert_core.inference.labels import (
    Chosen,
    Classified,
    Rated,
    TaggedWord,
    choose,
    classify,
    rate,
    tag,
)
from bert_core.inference.maps import AttentionMaps, attention_maps
from bert_core.inference.masks import Candidate, fill_mask, next_sentence_probability

__all__ = [
    "Answer", "AttentionMaps", "Candidate", "Chosen", "Classified", "Embedded", "Rated",
    "TaggedWord", "answer", "attention_maps", "choose", "classify", "complete",
    "cosine_similarity", "embed", "fill_mask", "nearest", "next_sentence_probability", "rate",
    "tag",
]  # fmt: skip
