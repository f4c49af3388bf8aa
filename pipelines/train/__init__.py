"""What pretraining and fine-tuning share: settings, launching under Ray Train, telemetry."""
