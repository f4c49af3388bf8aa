"""What a training tells, and how it leaves the worker: curve, metrics, progress, runs."""
