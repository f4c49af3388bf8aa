"""Stage: from training examples to a pretrained encoder."""
