"""Files that people bring: finding and opening them, bytes to text, text to records."""
