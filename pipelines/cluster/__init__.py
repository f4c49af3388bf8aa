"""Ray: where work runs, who shares a training run, and what machine computes."""
