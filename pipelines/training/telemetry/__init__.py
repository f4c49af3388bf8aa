"""What a training run reports, and how it leaves the worker: curve, metrics, progress, runs."""
