"""What the tasks of a simulation share: the time, the machine, the ledger, and versions of requests that the broker offers."""

from __future__ import annotations

from random import Random

from kcli.protocol.apis import API_KEYS, API_VERSIONS
from kcli.protocol.message import Message
from kcli.simulator.client import SimulatedClient, Task, run_task
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
    """One simulation's surroundings. `pace`: how much longer than usual clients pause; `is_ending`: they begin nothing new."""

    def __init__(self, scheduler: Scheduler, network: Network, machine: Machine, trace: Trace, pace: int) -> None:
        self.scheduler = scheduler
        self.network = network
        self.machine = machine
        self.trace = trace
        self.pace = pace
        self.ledger = Ledger()
        self.versions: dict[int, tuple[int, int]] = {}
        self.is_ending = False
        self.faults_allowed = False  # the disk may fail: storage errors are answers like others
        self.tasks_running = 0
        self._client_count = 0

    def client(self, name: str) -> SimulatedClient:
        """A new client."""
        self._client_count += 1
        return SimulatedClient(self.scheduler, self.network, self.machine, name, FIRST_PORT + self._client_count)

    def clocks(self) -> Clocks:
        """The time, and how far the machine's clock may have been from it."""
        wall = self.machine.wall_clock
        return Clocks(self.scheduler.now_ms, wall.most_ahead_ms + wall.most_behind_ms)

    def run(self, task: Task[None]) -> None:
        """Let a task run."""

        self.tasks_running += 1

        def counted() -> Task[None]:
            yield from task
            self.tasks_running -= 1

        run_task(self.scheduler, counted())

    def version(self, rng: Random, key: int, lowest: int = 0) -> int:
        """One of the versions that the broker offers: mostly the newest."""
        low, high = self.versions[key]
        return high if rng.random() < 0.5 else rng.randint(max(low, lowest, API_KEYS[key].lowest_version), high)

    def greet(self, client: SimulatedClient) -> Task[None]:
        """Ask what the broker offers, until it answers. Raises SimulationFailure for an answer that is an error."""
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
        """A request of an API."""
        return API_KEYS[key].request.new(**fields)

    @staticmethod
    def struct(key: int, struct_name: str, /, **fields: object) -> Message:
        """A struct in a request of an API, by Kafka's name."""
        return API_KEYS[key].request.classes[struct_name](**fields)
