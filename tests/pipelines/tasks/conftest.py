"""The tokenizer of the small tasks over letters."""

import pytest

from bert_core.vocabulary import WordPieceTokenizer
from tests.pipelines.tasks.letters import TOKENS


@pytest.fixture(scope="session")
def tokenizer() -> WordPieceTokenizer:
    return WordPieceTokenizer(TOKENS)
