"""What a loaded model can do with texts.

Everything here computes on the model's device, without dropout, in float32 unless a `precision` is
given: equal weights and texts give equal results in any process on the same machine. Results come
in the order of the texts. A text longer than the model can read loses its end, and the result says
how many did.
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
from bert_core.inference.pretrained import (
    AttentionMaps,
    Candidate,
    Embedded,
    attention_maps,
    complete,
    cosine_similarity,
    embed,
    fill_mask,
    next_sentence_probability,
)
