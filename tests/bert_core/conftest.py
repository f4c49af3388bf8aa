"""Both backends, for tests that hold whichever computes; and one thread."""

import pytest
import torch

from bert_core.backends.operations import BACKENDS, use_backend


@pytest.fixture(params=BACKENDS)
def backend(request):
    """The name of the backend that computes in the test."""
    with use_backend(request.param):
        yield request.param


@pytest.fixture(autouse=True)
def one_thread():
    """Such small products wait for a second thread longer than they take."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)
