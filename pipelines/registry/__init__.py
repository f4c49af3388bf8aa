"""The model registry: registration, proof, promotion and look-up by name and alias."""
