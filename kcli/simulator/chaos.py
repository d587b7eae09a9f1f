"""Random faults of a machine: cut links, dead processes, power losses, clean stops, failing and full disks.

fault              effect
-----------------  -------------------------------------------------------------------------------------------------
a link is cut      clients connect again
the process dies   between two events, two effects, or in a call of the disk; it is started again a little later
power is lost      the same, and writes that were not flushed are lost or torn (kcli.simulator.disk)
a clean stop       the node has time to stop; power may be lost then, and no record may be missing
the clock jumps    it is set forward or back, by milliseconds or hours, or to the right time
the disk fails     some calls, or all; or it is full: the node may exit, and is started again on a working disk
"""

from __future__ import annotations

import errno
from random import Random

from kcli.simulator.checkers import DiskChecker
from kcli.simulator.client import Task
from kcli.simulator.faults import Fault
from kcli.simulator.machine import Machine
from kcli.simulator.partition_ledger import SimulationFailure
from kcli.simulator.world import World

STOP_TIMEOUT_MS = 60_000
START_TIMEOUT_MS = 60_000
FAULTY_SHARE = 0.2  # of all seeds
POWER_LOSS_SHARE = 0.5  # of all deaths
SHORT_MS = 20
JUMPY_SHARE = 0.3  # of all seeds
HOUR_MS = 3_600_000
# The errors of the wall clock. The sum of two is less than a day, after which a broker removes idle producers.
CLOCK_ERRORS_MS = (0, 0, 1, -1, 700, -700, -30_000, 30_000, HOUR_MS // 2, -HOUR_MS, 6 * HOUR_MS, -6 * HOUR_MS)


class Chaos:
    """Injects faults into one machine, and starts it again; the machine calls it at deaths and starts.

    `faulty_share` is the share of seeds with disk errors, `power_loss_share` that of deaths with a power loss. A process fails
    that is not ready after `ready_ms` (None: it may wait for other machines), or has not stopped after `stop_ms`. Between two
    faults there are up to `max_pause_ms`, by default a time of the seed.
    """

    def __init__(
        self,
        world: World,
        checker: DiskChecker,
        rng: Random,
        data_directories: list[str],
        faulty_share: float = FAULTY_SHARE,
        power_loss_share: float = POWER_LOSS_SHARE,
        machine: Machine | None = None,
        ready_ms: int | None = START_TIMEOUT_MS,
        stop_ms: int = STOP_TIMEOUT_MS,
        max_pause_ms: int | None = None,
    ) -> None:
        self.deaths = 0
        self._world = world
        self._machine = machine = world.machine if machine is None else machine
        self._ready_ms, self._stop_ms = ready_ms, stop_ms
        self._checker = checker
        self._rng = rng
        self._directories = data_directories
        self._next_is_power_loss = False
        self._power_loss_share = power_loss_share
        self._is_faulty = rng.random() < faulty_share
        self._is_jumpy = rng.random() < JUMPY_SHARE
        pause_ms = rng.choice((100, 300, 1000)) * world.pause_factor
        self._max_pause_ms = pause_ms if max_pause_ms is None else max_pause_ms
        self._is_stopping = False
        self._dead: Fault | None = None  # a directory that fails for longer than the life of one process
        machine.on_death = self._died
        machine.on_ready = self._ready
        machine.on_halt = self._halted

    def run(self) -> Task[None]:
        """Inject faults until the simulation ends."""
        world, rng, machine = self._world, self._rng, self._machine
        while not world.is_ending:
            yield rng.randrange(self._max_pause_ms)
            if not machine.is_up or world.is_ending:
                continue
            choice = rng.random()
            self._next_is_power_loss = rng.random() < self._power_loss_share
            if choice < 0.4:
                world.network.cut_one()
            elif choice < 0.6:
                machine.die_soon()
            elif choice < 0.7:
                machine.die_now()
            elif choice < 0.8 and machine.is_ready:
                yield from self._restart_cleanly()
            elif choice < 0.9 and self._is_faulty and machine.is_ready:
                world.faults_allowed = True
                if len(self._directories) > 1 and rng.random() < 0.4:
                    yield from self._lose_directory()
                else:
                    yield from self._break_disk()
            elif choice >= 0.9 and self._is_jumpy:
                self._set_clock()

    # -------------------------------------------------------------------------------------------------- deaths and starts

    def _died(self) -> None:
        """Handle the death of the process: decide what the disk keeps, and schedule the next start."""
        self._is_stopping = False
        world, rng, disk = self._world, self._rng, self._machine.disk
        self.deaths += 1
        disk.faults.clear()
        disk.capacity_bytes = None
        self._machine.may_end = False
        disk.kill()
        self._settle_death()
        if self._dead is not None:
            disk.faults.append(self._dead)
        self._checker.dead_directory = None if self._dead is None else self._dead.path
        self._next_is_power_loss = rng.random() < self._power_loss_share
        world.virtual_time.after(rng.randrange(1000), self.start)

    def _settle_death(self) -> None:
        world, rng, disk = self._world, self._rng, self._machine.disk
        if self._next_is_power_loss:
            self._checker.power_lost()
            disk.lose_power(rng)
        else:
            self._checker.process_died()
        world.trace.add("disk", "lost power" if self._next_is_power_loss else "still up")

    def start(self) -> None:
        """Start a process. Raises SimulationFailure later if it does not get ready in time."""
        machine, virtual_time = self._machine, self._world.virtual_time
        if machine.is_up:
            return
        machine.start()
        number = machine.start_count

        def check_ready() -> None:
            if machine.start_count == number and machine.is_up and not machine.is_ready:
                raise SimulationFailure(f"start {number} is not ready after {self._ready_ms} ms")

        if self._ready_ms is not None:
            virtual_time.after(self._ready_ms, check_ready)

    def _ready(self) -> None:
        """Check the disk before the node accepts clients."""
        self._world.trace.add(self._machine.name, "ready")
        self._checker.started()

    def _halted(self) -> None:
        """Handle the exit of the node. Raises SimulationFailure if it was not stopped and the disk did not fail."""
        if self._is_stopping:
            self._machine.disk.kill()
            self._checker.stopped()
        elif self._machine.may_end:
            self._died()
        else:
            raise SimulationFailure("the node has exited without a reason")

    def _restart_cleanly(self) -> Task[None]:
        machine, rng = self._machine, self._rng
        number = machine.start_count
        yield from self.stop()
        if machine.start_count == number and not machine.is_up and machine.is_halted:
            if rng.random() < 0.5:
                self._world.trace.add("disk", "lost power after the stop")
                machine.disk.lose_power(rng)
            yield rng.randrange(1000)
            self.start()

    def stop(self) -> Task[None]:
        """Stop the node cleanly. Raises SimulationFailure if it does not exit in time."""
        machine = self._machine
        number = machine.start_count
        self._is_stopping = True
        machine.stop()
        waited_ms = 0
        while machine.is_up and machine.start_count == number and waited_ms < self._stop_ms:
            yield SHORT_MS
            waited_ms += SHORT_MS
        self._is_stopping = False
        if machine.is_up and machine.start_count == number:
            raise SimulationFailure(f"the node did not stop within {self._stop_ms} ms")

    def _set_clock(self) -> None:
        """Set the wall clock while the node runs."""
        error_ms = self._rng.choice(CLOCK_ERRORS_MS)
        self._world.trace.add(self._machine.name, f"the wall clock is {error_ms} ms off")
        self._machine.wall_clock.set_error(error_ms)

    def calm(self) -> None:
        """End the faults; if the clock jumps, it is set back for the last time: the node must finish its work nevertheless."""
        if self._is_jumpy:
            self._machine.wall_clock.set_error(min(CLOCK_ERRORS_MS))

    def _break_disk(self) -> Task[None]:
        """Let the disk fail for a while; then the process is killed, and the next one finds a working disk."""
        world, rng, disk = self._world, self._rng, self._machine.disk
        self._machine.may_end = True
        fault: Fault | None = None
        if rng.random() < 0.4:
            disk.capacity_bytes = disk.used_bytes() + rng.randrange(3000)
            world.trace.add("disk", "nearly full")
        else:
            call = rng.choice(("flush", "append", "read", "rename", "create", ""))
            code = rng.choice((errno.EIO, errno.EIO, errno.EROFS))
            fault = Fault(call, rng.choice(self._directories), code, skip=rng.randrange(4), count=rng.choice((1, 3, -1)))
            disk.faults.append(fault)
            world.trace.add("disk", f"fails: {call or 'all'} below {fault.path}")
        yield rng.randrange(3000)
        disk.capacity_bytes = None
        disk.faults.clear()
        self._next_is_power_loss = rng.random() < 0.3
        if self._machine.is_up:
            self._machine.die_now()

    def _lose_directory(self) -> Task[None]:
        """Let the last log directory fail, also during the next start; it works again at the start after that."""
        world, rng, machine = self._world, self._rng, self._machine
        self._dead = Fault("", self._directories[-1], errno.EIO, count=-1)
        machine.disk.faults.append(self._dead)
        world.trace.add("disk", f"{self._dead.path} is gone")
        yield rng.randrange(2000)
        if machine.is_up:
            machine.die_now()
        yield 1000 + rng.randrange(3000)
        world.trace.add("disk", f"{self._dead.path} is back")
        self._directory_is_back(self._dead)

    def _directory_is_back(self, dead: Fault) -> None:
        """Repair the directory. A running process would keep it offline, so it is killed."""
        machine = self._machine
        self._dead = None
        if machine.is_up:
            machine.die_now()
        else:
            machine.disk.faults[:] = [fault for fault in machine.disk.faults if fault is not dead]
            self._checker.dead_directory = None
