"""The operations on a CPU, their backward passes written by hand."""
