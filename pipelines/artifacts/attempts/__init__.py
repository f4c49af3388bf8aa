"""How an artifact is built: who builds it, its working files, and its one commit point."""
