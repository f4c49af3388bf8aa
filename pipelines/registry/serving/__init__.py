"""What runs where a registered model is served: MLflow models that need `bert_core` alone."""
