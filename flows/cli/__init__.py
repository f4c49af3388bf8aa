"""The `bertsmith` command line."""

import sys


def main() -> None:
    """Run the command line; exit codes: 0 done, 1 failed, 2 a wrong request, 130 interrupted."""
    from flows.cli.app import run

    sys.exit(run(sys.argv[1:]))
