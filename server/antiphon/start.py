"""Entry point of the ``antiphon`` script: light, so that Ctrl-C during its imports ends quietly."""

import sys

INTERRUPTED = 130


def main() -> None:
    """Run the command of the command line."""
    try:
        from antiphon import cli
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    cli.main()
