"""What a loaded model can do with texts.

Everything here computes on the model's device, without dropout, in float32 unless a `precision` is
given: equal weights and texts give equal results in any process on the same machine. Results come
in the order of the texts. A text longer than the model can read loses its end, and the result says
how many did. Batches hold what suits the device; where one does not fit its memory, it is halved.
"""

from bert_core.inference.answers import (
    Answer,
    Assigned,
    Chosen,
    Classified,
    Rated,
    TaggedWord,
    answer,
    assign_labels,
    choose,
    classify,
    rate,
    tag,
)
from bert_core.inference.embedding import (
    AttentionMaps,
    Embedded,
    attention_maps,
    cosine_similarity,
    embed,
    nearest,
)
from bert_core.inference.tokens import Candidate, complete, fill_mask, next_sentence_probability
