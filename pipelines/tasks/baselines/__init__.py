"""What people try before a model of their own, learned from the training items in seconds."""
