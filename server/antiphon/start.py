"""Entry point of the ``antiphon`` script: it imports little, so that Ctrl-C during imports ends without a
traceback."""

import sys

INTERRUPTED = 130


def main() -> None:
    """Run the command that the command line names."""
    try:
        from antiphon import cli
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    cli.main()
