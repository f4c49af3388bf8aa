"""What the model is computed with: the number format, and the operations on each device."""
