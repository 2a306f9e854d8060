"""``python -m profkit`` is the ``profkit`` command."""

import sys

from profkit.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
