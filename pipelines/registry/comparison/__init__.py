"""Which of two versions is better: their answers on the same data, and what a bootstrap says."""
