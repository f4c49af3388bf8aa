"""A model's files: folders that are whole or not there, JSON, tensors, tokenizers."""
