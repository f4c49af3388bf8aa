"""One optimizer step, the loop around it, and the state that a run is taken up from."""
