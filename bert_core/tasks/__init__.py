"""Heads of tasks that the paper has none for: one module each, called like its head.

A module holds `MODEL`, whose `head_name` is the module's name, and `QUESTION`, what rows of a table
ask it (`bert_core.inference.tables`). It is found by being here. A registered model carries
`bert_core` and nothing else, so this is where its head must be.
"""
