"""Stage: labelled texts, divided into train and held-out."""
