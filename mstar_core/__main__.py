"""`python -m mstar_core`: the same as the command `mstar`."""

import sys

from mstar_core.cli import main

sys.exit(main())
