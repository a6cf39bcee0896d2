"""The command line, `bursar`."""

import sys
from typing import Final

from bursar.cli.interrupts import INTERRUPTED, watch_interrupts

_REQUIRED_PACKAGES: Final = frozenset({"rich", "typer"})


def main() -> None:
    """Run the command line, or say which packages it still needs.

    The library comes without them, but the script `bursar` is installed with it.
    """
    with watch_interrupts():
        try:
            _run()
        except KeyboardInterrupt:  # while the commands are being imported
            raise SystemExit(INTERRUPTED) from None


def _run() -> None:
    try:
        from bursar.cli.app import app
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _REQUIRED_PACKAGES:
            raise
        sys.stderr.write(
            "bursar: the command line needs more packages: pip install 'bursar[service]'\n"
        )
        raise SystemExit(2) from None
    app()
