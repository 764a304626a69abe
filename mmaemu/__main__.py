"""`python -m mmaemu`: the same command line as the script `mmaemu`."""

from __future__ import annotations

import sys

from mmaemu.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
