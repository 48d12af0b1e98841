"""The command line: `kafkagroup COMMAND`, or `python -m kafkagroup COMMAND`.

This module imports neither click nor rich: without the extra, `main` says what to install.
`_app.py` loads the commands; each command is in its own file, named after it.
"""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line, and exit: 0 success, 1 failure, 2 wrong usage."""
    try:
        # Imported only to see whether they are installed.
        import click  # noqa: F401
        import rich  # noqa: F401
    except ImportError as error:
        sys.exit(f"kafkagroup: the command line needs {error.name}: pip install 'kafkagroup[cli]'")
    from kafkagroup.cli._app import app

    app(prog_name="kafkagroup")
