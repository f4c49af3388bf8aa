"""The chain, one folder a stage: corpus, vocabulary, examples, pretraining, labelled, finetuning,
evaluation.
"""
