"""What is mended and what is left out, each counted under its reason."""
