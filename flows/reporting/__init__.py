"""What a person sees of a run: progress, the final screen, the report."""
