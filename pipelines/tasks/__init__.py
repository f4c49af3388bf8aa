"""Tasks: labelled texts that an encoder is fine-tuned on."""
