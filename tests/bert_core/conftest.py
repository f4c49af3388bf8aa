"""Both backends, for tests that hold whichever computes."""

import pytest

from bert_core.backends.operations import BACKENDS, use_backend


@pytest.fixture(params=BACKENDS)
def backend(request):
    """The name of the backend that computes in the test."""
    with use_backend(request.param):
        yield request.param
