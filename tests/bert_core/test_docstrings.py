"""Whatever the front door offers says what it promises."""

import pytest

import bert_core as bc

OFFERED = {name: getattr(bc, name) for name in bc.__all__ if callable(getattr(bc, name))}


@pytest.mark.parametrize("name", OFFERED)
def test_everything_offered_has_a_promise_in_its_first_line(name):
    if name == "Precision":
        return  # a type of words
    first = (OFFERED[name].__doc__ or "").split("\n")[0]
    assert first.endswith((".", ":"))
    assert len(first) > 15
