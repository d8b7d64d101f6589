"""Entry point of the ``antiphon`` script: it imports little, so that Ctrl-C during imports ends without a
traceback."""

import sys


def main() -> None:
    """Run the command that the command line names."""
    try:
        from antiphon import cli
    except KeyboardInterrupt:
        from antiphon.install import interrupted_code

        sys.exit(interrupted_code())
    cli.main()
