"""Held-out figures: of a pretrained encoder, of a classifier, and what both have to beat."""
