"""The model registry: registration, proof, promotion and look-up by name and alias."""

from pipelines.registry.listing import ListedModel, list_models, locate
from pipelines.registry.promotion import Promotion, promote
from pipelines.registry.registration import RegisteredModel, Submission, register
from pipelines.registry.settings import RegistrationSettings
from pipelines.registry.verification import Proof, Verification, VerificationError, verify

__all__ = [
    "ListedModel",
    "Promotion",
    "Proof",
    "RegisteredModel",
    "RegistrationSettings",
    "Submission",
    "Verification",
    "VerificationError",
    "list_models",
    "locate",
    "promote",
    "register",
    "verify",
]
