"""A model's files: folders that are complete or absent, JSON, tensors, tokenizers."""
