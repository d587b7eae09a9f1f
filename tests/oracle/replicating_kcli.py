"""`python -m tests.oracle.replicating_kcli serve ...`: kcli whose controller places several replicas, as if its brokers copied.

The invented brokers of tests.oracle.traffic.controllers have replicas, and the controller decides about them as Kafka's does. A
node with both roles refuses them, because the brokers of kcli do not copy records yet.
"""

from __future__ import annotations

import sys

from kcli.commands.app import main
from kcli.server.controller.controller_state import ControllerState

if __name__ == "__main__":
    ControllerState.replicates = property(lambda self: True, lambda self, value: None)  # type: ignore[assignment]
    sys.exit(main(sys.argv[1:]))
