"""The command line: `kafkagroup COMMAND`, or `python -m kafkagroup COMMAND`.

Nothing heavy is imported here: without the extra, `main` still says what to install. `_app.py` has
the commands; each is a file of its own here, named after it.
"""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line, and exit: 0 success, 1 failure, 2 wrong usage."""
    try:
        import click  # noqa: F401
        import rich  # noqa: F401
    except ImportError as error:
        sys.exit(f"kafkagroup: the command line needs {error.name}: pip install 'kafkagroup[cli]'")
    from kafkagroup.cli._app import app

    app(prog_name="kafkagroup")
