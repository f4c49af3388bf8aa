"""Prefect flows over the pipelines' stages, and the `bertsmith` command line."""
