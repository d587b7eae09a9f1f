"""`python -m kcli` is `kcli`."""

import sys

from kcli.commands.app import main

sys.exit(main())
