"""Stage: from a pretrained encoder and labelled texts to a classifier."""
