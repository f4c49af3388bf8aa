"""MLflow: the tracker, whether it can be reached, and the server that `up` starts."""
