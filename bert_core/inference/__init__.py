"""What a loaded model can do with texts.

Everything here computes on the model's device, without dropout, in float32 unless a `precision` is
given: equal weights and texts give equal results in any process on the same machine. Results come
in the order of the texts. A text longer than the model can read loses its end, and the result says
how many did. Batches hold what suits the device; where one does not fit its memory, it is halved.
"""

from bert_core.inference.answers import Answer, answer
from bert_core.inference.embedding import Embedded, cosine_similarity, embed, nearest
from bert_core.inference.labels import (
    Assigned,
    Chosen,
    Classified,
    Rated,
    assign_labels,
    choose,
    classify,
    rate,
)
from bert_core.inference.maps import AttentionMaps, attention_maps
from bert_core.inference.tags import TaggedWord, tag
from bert_core.inference.tokens import Candidate, complete, fill_mask, next_sentence_probability
