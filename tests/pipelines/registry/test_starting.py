"""A recipe's name for an encoder becomes an artifact of the store."""

import pytest

from pipelines.errors import UserError
from pipelines.registry.package import resolved_encoder


def test_a_registered_encoder_is_taken_into_the_store(models, tracker):
    registered = models.register(models.trained(5))
    reference = f"models:/{registered.name}/{registered.version}"
    found = resolved_encoder(reference, tracker, models.context)
    assert found.kind == "imported_model"
    assert found.statistics["source"] == reference
    weights = "model.safetensors"
    assert found.manifest.files[weights].sha256 == (
        models.encoder(5).manifest.files[weights].sha256
    )
    assert resolved_encoder(reference, tracker, models.context).reused
    # Our own artifact needs no copy.
    own = models.encoder(5)
    assert resolved_encoder(own.fingerprint, tracker, models.context).fingerprint == own.fingerprint
    with pytest.raises(UserError):
        resolved_encoder("models:/nobody@champion", tracker, models.context)
