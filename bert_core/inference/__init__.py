"""What a loaded model can do with texts.

Everything here computes on the model's device, without dropout, in float32 unless a `precision` is
given: equal weights and texts give equal results in any process on the same machine. Results come
in the order of the texts. A text longer than the model can read loses its end, and most results say
how many did; `answer` and `tag` read windows, `fill_mask` and `complete` raise ValueError.
"""
