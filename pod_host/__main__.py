"""``python -m pod_host``: the same as the console script ``pod-host``."""

import sys

from pod_host.cli import main

sys.exit(main())
