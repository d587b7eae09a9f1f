"""The objects that the tasks of a simulation share: time, network, machine, ledger, and the versions that the broker offers."""

from __future__ import annotations

from random import Random

from kcli.protocol.apis import API_KEYS, API_VERSIONS
from kcli.protocol.message import Message
from kcli.simulator.client import SimulatedClient, Steps, run_task
from kcli.simulator.compacted_ledger import Clocks
from kcli.simulator.ledger import Ledger
from kcli.simulator.machine import Machine
from kcli.simulator.network import Network
from kcli.simulator.partition_ledger import SimulationFailure
from kcli.simulator.scheduler import Scheduler
from kcli.simulator.trace import Trace

FIRST_PORT = 40_000
PAUSE_MS = 100


class World:
    """The environment of one simulation. Clients multiply their pauses by `pause_factor`, and begin nothing if `is_ending`."""

    def __init__(self, scheduler: Scheduler, network: Network, machine: Machine, trace: Trace, pause_factor: int) -> None:
        self.scheduler = scheduler
        self.network = network
        self.machine = machine
        self.trace = trace
        self.pause_factor = pause_factor
        self.ledger = Ledger()
        self.versions: dict[int, tuple[int, int]] = {}
        self.is_ending = False
        self.faults_allowed = False  # the disk may fail: storage errors are valid answers
        self.tasks_running = 0
        self._client_count = 0

    def client(self, name: str) -> SimulatedClient:
        """Make a new client."""
        self._client_count += 1
        return SimulatedClient(self.scheduler, self.network, self.machine, name, FIRST_PORT + self._client_count)

    def clocks(self) -> Clocks:
        """Return the time, and the largest difference of the machine's clock from it."""
        wall = self.machine.wall_clock
        return Clocks(self.scheduler.now_ms, wall.most_ahead_ms + wall.most_behind_ms)

    def run(self, steps: Steps) -> None:
        """Start a task."""

        self.tasks_running += 1

        def counted() -> Steps:
            yield from steps
            self.tasks_running -= 1

        run_task(self.scheduler, counted())

    def version(self, rng: Random, key: int, lowest: int = 0) -> int:
        """Draw one of the versions that the broker offers: mostly the newest."""
        low, high = self.versions[key]
        return high if rng.random() < 0.5 else rng.randint(max(low, lowest, API_KEYS[key].lowest_version), high)

    def greet(self, client: SimulatedClient) -> Steps:
        """Send ApiVersions until the broker answers. Raises SimulationFailure for an answer that is an error."""
        while not self.versions:
            request = self.request(API_VERSIONS, client_software_name="simulator", client_software_version="1")
            response = yield client.send(API_VERSIONS, 3, request)
            if response is None:
                yield PAUSE_MS
                continue
            if response.error_code:
                raise SimulationFailure(f"ApiVersions was answered with error {response.error_code}")
            self.versions = {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}

    @staticmethod
    def request(key: int, /, **fields: object) -> Message:
        """Make a request of an API."""
        return API_KEYS[key].request.new(**fields)

    @staticmethod
    def struct(key: int, struct_name: str, /, **fields: object) -> Message:
        """Make a struct of an API's request, by Kafka's name."""
        return API_KEYS[key].request.classes[struct_name](**fields)
