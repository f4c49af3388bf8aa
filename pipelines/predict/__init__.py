"""What registered models answer: texts and tables, whole files, labelled files."""
