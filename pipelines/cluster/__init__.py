"""Ray: where work runs, who shares a training, and what machine computes."""
