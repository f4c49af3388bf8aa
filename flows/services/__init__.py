"""The services of `bertsmith up`: a Prefect server, an MLflow server and a worker."""
