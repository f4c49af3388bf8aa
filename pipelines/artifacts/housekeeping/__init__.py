"""What a store holds, and what of it nothing uses."""
