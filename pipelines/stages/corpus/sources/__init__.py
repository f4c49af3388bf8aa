"""Where text comes from: one module a kind of source."""
