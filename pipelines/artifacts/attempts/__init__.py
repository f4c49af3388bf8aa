"""An artifact in the making: who builds it, its working files, and its one commit point."""
