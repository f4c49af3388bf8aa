"""Processes that outlive a command: starting, recognizing, finding and stopping them."""
