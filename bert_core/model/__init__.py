"""The encoder, its heads and the models of all tasks, in the words of the paper."""
