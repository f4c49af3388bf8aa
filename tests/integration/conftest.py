"""The small artifacts of the stages' own tests serve here too."""

from tests.pipelines.conftest import (
    small_context,
    small_corpus,
    small_examples,
    small_settings,
    small_vocabulary,
)

__all__ = ["small_context", "small_corpus", "small_examples", "small_settings", "small_vocabulary"]
