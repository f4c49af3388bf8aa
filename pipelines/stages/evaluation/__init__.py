"""Stage: what a classifier answers on held-out texts, label by label."""
