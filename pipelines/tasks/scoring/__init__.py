"""How answers are scored, by the rules under which the field publishes its figures."""
