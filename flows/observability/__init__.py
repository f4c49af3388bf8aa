"""What other programs are told of runs: figures for Prometheus, and logs as JSON lines."""
