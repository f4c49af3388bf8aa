"""Ray: connecting to it, mapping tasks over shards, checking its nodes."""
