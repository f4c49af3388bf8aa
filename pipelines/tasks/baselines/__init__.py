"""Simpler models, learned from the training items in seconds."""
