"""`python -m sonde.cli` runs `sonde`, for environments whose scripts are not on the path."""

import sys

from sonde.cli.entry import main

sys.exit(main())
