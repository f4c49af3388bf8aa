"""What a deployment of the image does once: passwords, the bucket, the deployments of the flows."""
