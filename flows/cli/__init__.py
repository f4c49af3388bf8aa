"""The `bertsmith` command line."""

import sys


def main() -> None:
    """Run the command line. Exit codes: 0 done, 1 failed, 2 a person's mistake, 130 interrupted."""
    from flows.cli.app import run

    sys.exit(run(sys.argv[1:]))
