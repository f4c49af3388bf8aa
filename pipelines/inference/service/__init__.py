"""A model behind HTTP: what a request asks, what is answered together, and the server."""
