"""The examples stage: documents in, training examples in Arrow shards out, and reading them."""
