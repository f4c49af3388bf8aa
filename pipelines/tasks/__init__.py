"""The families of tasks that an encoder is fine-tuned for, one module each."""
