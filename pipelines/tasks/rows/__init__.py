"""Tasks of a person's own: rows of a table, and the class in a file that answers them."""
