"""`python -m logstore` is `logstore-dump`."""

import sys

from logstore.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
