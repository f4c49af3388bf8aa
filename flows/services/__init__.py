"""What `bertsmith up` starts: a Prefect server, an MLflow server, and the flows that they run."""
