"""`python -m appliance` is the `breadbox` command."""

import sys

from appliance.cli import main

sys.exit(main())
