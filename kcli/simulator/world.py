"""What the tasks of a simulation share: virtual time, the machines, the ledger, and the API versions that brokers offer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from kcli.client.client_config import ClientConfig
from kcli.network.events import PeerAddress
from kcli.protocol.apis import API_KEYS, API_VERSIONS
from kcli.protocol.message import Message
from kcli.simulator.client import SimulatedClient, Task, run_task
from kcli.simulator.compacted_ledger import Clocks
from kcli.simulator.core_client import BROKER_ADDRESS, ClientListener, CoreClient, WireRequest
from kcli.simulator.ledger import Ledger
from kcli.simulator.machine import Machine
from kcli.simulator.network import Network
from kcli.simulator.partition_ledger import SimulationFailure
from kcli.simulator.trace import Trace
from kcli.simulator.virtual_time import VirtualTime

FIRST_PORT = 40_000
PAUSE_MS = 100


class World:
    """The environment of one simulation.

    `pause_factor` multiplies the pauses of clients; `is_ending`: clients start nothing new. Clients find the brokers, each with
    the address of its listener, in `brokers`; `machine` is the only machine, or the first one of several. Of several a broker
    may forward a request twice, when a controller does not answer.
    """

    def __init__(
        self,
        virtual_time: VirtualTime,
        network: Network,
        machines: Sequence[Machine],
        trace: Trace,
        pause_factor: int,
        brokers: Sequence[tuple[Machine, PeerAddress]] = (),
    ) -> None:
        self.virtual_time = virtual_time
        self.network = network
        self.machines = machines
        self.machine = machines[0]
        self.trace = trace
        self.pause_factor = pause_factor
        self.ledger = Ledger()
        self.versions: dict[int, tuple[int, int]] = {}
        self.is_ending = False
        self.faults_allowed = False  # the disk may fail, so that storage errors are allowed responses
        self.tasks_running = 0
        self._client_count = 0
        brokers = brokers or ((self.machine, BROKER_ADDRESS),)
        self._servers = tuple(f"{address.host}:{address.port}" for _, address in brokers)
        for machine, address in brokers:
            network.add_host(ClientListener(network, machine), address)

    @property
    def start_count(self) -> int:
        """How many processes were started, on all machines."""
        return sum(machine.start_count for machine in self.machines)

    @property
    def power_losses(self) -> int:
        """How often a machine lost its power."""
        return sum(machine.disk.power_losses for machine in self.machines)

    @property
    def max_behind_ms(self) -> int:
        """By how much the clock of a machine was behind at most."""
        return max(machine.wall_clock.max_behind_ms for machine in self.machines)

    def client(self, name: str) -> SimulatedClient:
        """Create a raw client."""
        self._client_count += 1
        return SimulatedClient(self.virtual_time, self.network, self.machine, name, FIRST_PORT + self._client_count)

    def core_client(
        self, name: str, rng: Random, config: ClientConfig, may_repeat: Callable[[WireRequest], bool] = lambda request: False
    ) -> CoreClient:
        """Create a process for a core of kcli's own client."""
        self._client_count += 1
        port = FIRST_PORT + self._client_count
        config = config._replace(bootstrap_servers=self._servers, client_id=name)
        return CoreClient(self.virtual_time, self.network, self.trace, name, port, rng, config, may_repeat)

    def clocks(self) -> Clocks:
        """Return the right time, and the largest error that a machine's clock may have had."""
        errors = (one.wall_clock.max_ahead_ms + one.wall_clock.max_behind_ms for one in self.machines)
        return Clocks(self.virtual_time.now_ms, max(errors))

    def run(self, task: Task[None]) -> None:
        """Start a task, and count it until it ends."""
        self.tasks_running += 1

        def counted() -> Task[None]:
            yield from task
            self.tasks_running -= 1

        run_task(self.virtual_time, counted())

    def version(self, rng: Random, key: int, lowest: int = 0) -> int:
        """Choose one of the versions that the broker offers; half of the time the newest one."""
        low, high = self.versions[key]
        return high if rng.random() < 0.5 else rng.randint(max(low, lowest, API_KEYS[key].lowest_version), high)

    def negotiate_versions(self, client: SimulatedClient) -> Task[None]:
        """Send ApiVersions requests until the broker responds. Raises SimulationFailure for an error response."""
        while not self.versions:
            request = self.request(API_VERSIONS, client_software_name="simulator", client_software_version="1")
            response = yield client.send(API_VERSIONS, 3, request)
            if response is None:
                yield PAUSE_MS
                continue
            if response.error_code:
                raise SimulationFailure(f"ApiVersions returned error {response.error_code}")
            self.versions = {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}

    @staticmethod
    def request(key: int, /, **fields: object) -> Message:
        """Create a request of an API."""
        return API_KEYS[key].request.new(**fields)

    @staticmethod
    def struct(key: int, struct_name: str, /, **fields: object) -> Message:
        """Create a struct inside a request of an API, by Kafka's name."""
        return API_KEYS[key].request.classes[struct_name](**fields)
