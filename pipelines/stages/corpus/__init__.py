"""The corpus stage: text of any origin in, clean and deduplicated documents in Arrow shards out."""
