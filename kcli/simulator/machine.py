"""A machine in virtual time: a node, its disk and its connections. It replaces kcli.server.shell and the operating system.

    effect           action of the machine
    ---------------  ---------------------------------------------------------------------------------------------------
    SendResponse     sends the frame on the client's link, or loops it back to the node as a ResponseReceived
    SendFile         the same; regions are read from the simulated disk
    NoResponse       accepts the next request of the connection
    SendRequest      to the node itself: loops it back as a RequestReceived on an internal connection, a little later; to
                     another machine: kcli.simulator.peer_links; a share of these comes once more, much later
    ClosePeer        closes the link to another machine
    Flush            flushes the paths on the simulated disk, one by one, after a delay; then Flushed
    Compute          computes at once; Computed comes a little later
    CloseConnection  closes the link; then ConnectionClosed
    HoldMemory       counts the bytes

The node's time comes from the clock of the real shell, on top of simulated clocks (kcli.simulator.virtual_time).

The node may die between any two effects and in any call of the disk: `die_soon` chooses where. A frame is overwritten as
soon as `handle` returns, to detect a node that keeps a view of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Protocol

from kcli.log.wall_time import WallTime
from kcli.network.events import ClosePeer, Peer, PeerAddress, SendRequest
from kcli.protocol.apis import ENVELOPE, WRITE_SHARE_GROUP_STATE
from kcli.server.events import (
    CloseConnection,
    Compute,
    Computed,
    Connection,
    ConnectionClosed,
    DeadlineReached,
    Effect,
    Event,
    FileRegion,
    Flush,
    Flushed,
    HoldMemory,
    NoResponse,
    RequestReceived,
    SendFile,
    SendResponse,
)
from kcli.server.loopback import answer_event, request_event
from kcli.simulator.disk import SimulatedDisk
from kcli.simulator.faults import SimulatedCrash
from kcli.simulator.network import SIZE_BYTES, End, FrameReader, Link, Network
from kcli.simulator.peer_links import PeerLinks
from kcli.simulator.trace import Trace, frame_text
from kcli.simulator.virtual_time import Action, VirtualTime, WallClock

SPOILT_BYTE = b"\xee"
# The largest delay of a deadline, and the longest time of a flush.
LATE_MS = 20
FLUSH_MS = 30
SLOW_FLUSH_MS = 3000
SLOW_SHARE = 0.03
COMPUTE_MS = 50
REPEATED_AFTER_MS = 2000
# A late copy would undo a later change, with Kafka's nodes, too: of what a client wants and a broker forwards, of a share
# partition's state.
NEVER_REPEATED = frozenset((ENVELOPE, WRITE_SHARE_GROUP_STATE))


class NodeProcess(Protocol):
    """The node that a machine runs; see kcli.server.node."""

    is_stopped: bool

    @property
    def is_ready(self) -> bool:
        """True once clients are served."""
        ...

    def is_open(self, listener: str) -> bool:
        """Return whether connections to a listener are accepted by now."""
        ...

    def start(self, now_ms: int) -> list[Effect]:
        """Start the node; return effects."""
        ...

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        """Handle an event; return effects."""
        ...

    def stop(self, now_ms: int) -> list[Effect]:
        """Begin a clean stop; return effects. It is done when `is_stopped` is True."""
        ...

    def next_deadline_ms(self) -> int | None:
        """Return the time of the next DeadlineReached event, or None."""
        ...


class _ServerEnd:
    """The node's side of a link: it passes one request at a time to the node."""

    def __init__(self, machine: Machine, connection: Connection) -> None:
        self.connection = connection
        self.link: Link
        self.is_busy = False  # a request was passed to the node, and the response is outstanding
        self.frames: deque[bytearray] = deque()
        self._machine = machine
        self._reader = FrameReader()
        connection.shell = self

    def received(self, link: Link, data: bytes) -> None:
        """Take received bytes."""
        self.frames.extend(self._reader.feed(data))
        self._machine.serve(self)

    def closed(self, link: Link) -> None:
        """Handle the end of the link."""
        self._machine.client_gone(self)


class Machine:
    """See the head of this module. `make_node` creates a node on the disk.

    Other machines reach its listeners at `addresses`, by listener name. `on_ready` is called before clients are accepted,
    `on_death` when the process has died, `on_halt` when it has exited.
    """

    def __init__(
        self,
        virtual_time: VirtualTime,
        network: Network,
        disk: SimulatedDisk,
        rng: Random,
        trace: Trace,
        make_node: Callable[[SimulatedDisk, Random, int, WallTime], NodeProcess],
        wall_clock: WallClock,
        machine_id: int = 1,
        addresses: Mapping[str, PeerAddress] | None = None,
    ) -> None:
        self.machine_id = machine_id
        # Names for the trace; that of the only machine, which is number 1, has no number.
        self.name, self._prefix = ("machine", "") if machine_id == 1 else (f"machine {machine_id}", f"m{machine_id}")
        self.disk = disk
        self.node: NodeProcess | None = None
        self.on_death: Callable[[], None] = lambda: None
        self.on_halt: Callable[[], None] = lambda: None
        self.on_ready: Callable[[], None] = lambda: None
        self.start_count = 0
        self.is_ready = False
        self.held_bytes = 0  # the memory of requests, as the node reports it
        self.is_halted = False  # the last process has exited by itself
        self.steps = 0  # of all processes so far; if it is the same, nothing has changed
        self.repeated_share = 0.0  # of the requests to other machines, which come twice
        self.repeated_count = 0
        self.may_end = False  # the disk fails, so that the process may exit or raise an exception
        self._virtual_time = virtual_time
        self._network = network
        self._rng = rng
        self._trace = trace
        self._make_node = make_node
        self.wall_clock = wall_clock
        self._clock = wall_clock.process_clock()
        self._ends: dict[int, _ServerEnd] = {}  # by connection id
        self._next_connection_id = 0
        self._effects_left: int | None = None
        self._timer: Action | None = None
        self._armed_ms: int | None = None
        self._paused: deque[Callable[[], None]] | None = None  # what happens after the pause of the process
        self._is_deadline_paused = False
        self._peers = PeerLinks(network, machine_id, self._in_this_life, self.handle)
        self._echoes = PeerLinks(network, machine_id, self._in_this_life, lambda event: None)
        for address in (addresses or {}).values():
            network.add_host(self, address)

    # -------------------------------------------------------------------------------------------------- starts and deaths

    @property
    def is_up(self) -> bool:
        """True if a node is running."""
        return self.node is not None

    @property
    def is_paused(self) -> bool:
        """True if nothing happens in the process."""
        return self._paused is not None

    def start(self) -> None:
        """Start a process, which may die during its start. Raises every other exception of the node."""
        self.start_count += 1
        self.is_halted = False
        self.held_bytes = 0
        self._trace.add(self.name, f"start {self.start_count}")

        self._clock = self.wall_clock.process_clock()

        def begin() -> None:
            self.node = self._make_node(self.disk, Random(self._rng.random()), self._clock.now_ms(), self._clock.wall_time)
            self._execute(self.node.start(self._clock.now_ms()))

        self._alive(begin)

    def die_soon(self) -> None:
        """Let the process die after a random number of effects, or in a random later call of the disk."""
        if self._rng.random() < 0.5:
            self._effects_left = self._rng.randrange(30)
        else:
            self.disk.die_in(self._rng.randrange(40))

    def die_never(self) -> None:
        """Cancel `die_soon`."""
        self._effects_left = None
        self.disk.die_never()

    def die_now(self) -> None:
        """Kill the process between two events."""
        self._alive(self._die)

    def _die(self) -> None:
        self.disk.is_dead = True
        raise SimulatedCrash("the process was killed")

    def stop(self) -> None:
        """Begin a clean stop of the process; `is_up` is False when it is done."""
        node = self.node
        if node is not None:
            self._trace.add(self.name, "stop")
            self._alive(lambda: self._execute(node.stop(self._clock.now_ms())))

    def pause(self) -> None:
        """Let nothing happen in the process until `resume`, as a machine that swaps or a virtual one that is moved."""
        if self._paused is None and self.node is not None:
            self._trace.add(self.name, "paused")
            self._paused = deque()

    def resume(self) -> None:
        """Let everything that came during the pause happen, in its order, and then the deadline that has passed.

        The event loop of the real shell reads what has come before it runs its timers.
        """
        paused, self._paused = self._paused, None
        if paused is None:
            return
        if self._is_deadline_paused:
            paused.append(lambda: self._handle(DeadlineReached()))
            self._is_deadline_paused = False
        self._trace.add(self.name, f"resumed, {len(paused)} events behind")
        node = self.node
        for run in paused:
            if self.node is node:
                self._alive(run)

    def _step(self, run: Callable[[], None]) -> None:
        """Run a step of the process now, or when it is not paused any more."""
        if self._paused is None:
            self._alive(run)
        else:
            self._paused.append(run)

    def _alive(self, run: Callable[[], None]) -> None:
        """Run a step of the process, in which it may die."""
        self.steps += 1
        try:
            run()
            self._update_state()
        except SimulatedCrash as crash:
            self.disk.is_dead = True
            self._trace.add(self.name, f"died: {crash}")
            self._forget()
            self.on_death()
        except Exception as error:
            if not self.may_end:
                raise
            # A process may exit if its disk fails.
            self._trace.add(self.name, f"ended: {type(error).__name__}: {error}")
            self.disk.is_dead = True
            self._forget()
            self.on_death()

    def _update_state(self) -> None:
        if self.node is None:
            return
        if self.node.is_ready and not self.is_ready:
            self.is_ready = True
            self.on_ready()
        if self.node.is_stopped:
            self._trace.add(self.name, "stopped")
            self.is_halted = True
            self._forget()
            self.on_halt()
            return
        self._arm()

    def _forget(self) -> None:
        self.node = None
        self.is_ready = False
        self._effects_left = None
        self._paused = None
        self._is_deadline_paused = False
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._armed_ms = None
        ends, self._ends = self._ends, {}
        for end in ends.values():
            # A machine without power does not close its connections.
            end.link.cut(*((0,) if self._rng.random() < self._network.conditions.silence_share else ()))
        self._peers.forget()
        self._echoes.forget()

    # ------------------------------------------------------------------------------------------------------ connections

    def accept(self, connect: Callable[[_ServerEnd], Link], client_port: int) -> Link | None:
        """Accept a client's connection; return the link, or None if nothing listens."""
        return self._accept("PLAINTEXT", connect, client_port) if self.is_ready else None

    def accept_peer(self, end: End, peer: Peer, from_machine_id: int) -> Link | None:
        """Accept a connection of another machine; return the link, or None if its listener is not open."""
        if self.node is None or not self.node.is_open(peer.listener):
            return None
        machines = (from_machine_id, self.machine_id)
        return self._accept(peer.listener, lambda own: self._network.connect(end, own, machines), from_machine_id)

    def _accept(self, listener: str, connect: Callable[[_ServerEnd], Link], client_port: int) -> Link:
        end = _ServerEnd(self, Connection(self._connection_id(), listener, "127.0.0.1", client_port))
        end.link = connect(end)
        self._ends[end.connection.connection_id] = end
        return end.link

    def _connection_id(self) -> int:
        self._next_connection_id += 1
        return self._next_connection_id

    def serve(self, end: _ServerEnd) -> None:
        """Pass the next request of a connection to the node, unless a response is outstanding."""
        if end.connection.connection_id not in self._ends or end.is_busy or not end.frames:
            return
        end.is_busy = True
        self._handle_request(RequestReceived(end.connection, memoryview(end.frames.popleft())))

    def _handle_request(self, event: RequestReceived) -> None:
        self._trace.add(f"{self._prefix}c{event.connection.connection_id}", f"-> {frame_text(event.frame)}")

        def handle() -> None:
            self._handle(event)
            event.frame[:] = SPOILT_BYTE * len(event.frame)

        self._step(handle)

    def client_gone(self, end: _ServerEnd) -> None:
        """Handle a link that was closed."""
        if self._ends.pop(end.connection.connection_id, None) is not None:
            self._trace.add(f"{self._prefix}c{end.connection.connection_id}", "gone")
            self.handle(ConnectionClosed(end.connection))

    # ------------------------------------------------------------------------------------------------ events and effects

    def handle(self, event: Event) -> None:
        """Pass an event to the node, and execute the effects."""
        if self.node is not None:
            self._step(lambda: self._handle(event))

    def _handle(self, event: Event) -> None:
        assert self.node is not None
        self._execute(self.node.handle(event, self._clock.now_ms()))

    def _execute(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if self._effects_left is not None:
                self._effects_left -= 1
                if self._effects_left < 0:
                    self._die()
            self._do(effect)

    def _do(self, effect: Effect) -> None:
        if isinstance(effect, SendResponse):
            self._answer(effect.connection, bytes(effect.frame))
        elif isinstance(effect, SendFile):
            self._send_file(effect)
        elif isinstance(effect, NoResponse):
            self._answered(effect.connection)
        elif isinstance(effect, SendRequest):
            self._send_request(effect)
        elif isinstance(effect, ClosePeer):
            self._peers.close(effect.peer)
        elif isinstance(effect, Flush):
            self._trace.add(self.name, f"flush {effect.flush_id} {' '.join(effect.paths)}")
            self._in_this_life(self._flush_delay_ms(), lambda: self._flush(effect, 0))
        elif isinstance(effect, Compute):
            event = Computed(effect.compute_id, effect.work())
            self._in_this_life(self._rng.randrange(COMPUTE_MS), lambda: self._handle(event))
        elif isinstance(effect, CloseConnection):
            self._close(effect.connection, effect.reason)
        else:
            assert isinstance(effect, HoldMemory)
            self.held_bytes += effect.size_bytes
            assert self.held_bytes >= 0, "more memory was released than held"

    def _send_file(self, effect: SendFile) -> None:
        try:
            parts = [
                part.file.read_at(part.position, part.size) if isinstance(part, FileRegion) else part for part in effect.parts
            ]
        except OSError as error:
            self._close(effect.connection, f"sending failed: {error}")
            return
        for part, data in zip(effect.parts, parts):
            assert len(part) == len(data), f"a part of {len(part)} bytes of a response has {len(data)} bytes"
        self._answer(effect.connection, b"".join(parts))

    def _close(self, connection: Connection, reason: str) -> None:
        self._trace.add(f"{self._prefix}c{connection.connection_id}", f"closed: {reason}")
        event = answer_event(connection, None)
        if event is not None:
            self._in_this_life(self._network.delay_ms(), lambda: self._handle(event))
            return
        end = self._ends.pop(connection.connection_id, None)
        if end is not None:
            self._virtual_time.after(0, lambda: self._closed(end))

    def _closed(self, end: _ServerEnd) -> None:
        end.link.close(1)
        self.handle(ConnectionClosed(end.connection))

    def _in_this_life(self, delay_ms: int, run: Callable[[], None]) -> None:
        """Run something later, unless the process is dead by then."""
        node = self.node

        def if_alive() -> None:
            if self.node is node and node is not None:
                self._step(run)

        self._virtual_time.after(delay_ms, if_alive)

    def _answer(self, connection: Connection, frame: bytes) -> None:
        self._trace.add(f"{self._prefix}c{connection.connection_id}", f"<- {frame_text(memoryview(frame)[4:])}")
        event = answer_event(connection, frame)
        if event is not None:
            self._in_this_life(self._network.delay_ms(), lambda: self._handle(event))
            return
        end = self._ends.get(connection.connection_id)
        if end is not None:
            assert end.is_busy, "a response without a request"
            end.link.send(1, frame)
            self._answered(connection)

    def _answered(self, connection: Connection) -> None:
        end = self._ends.get(connection.connection_id)
        if end is not None:
            end.is_busy = False
            self._virtual_time.after(0, lambda: self.serve(end))

    def _send_request(self, effect: SendRequest) -> None:
        if effect.peer.address is not None:
            self._peers.send(effect)
            if self.repeated_share and self._rng.random() < self.repeated_share:
                self._repeat(effect)
            return
        event = request_event(effect, self._connection_id())
        self._in_this_life(self._network.delay_ms(), lambda: self._handle_request(event))

    def _repeat(self, effect: SendRequest) -> None:
        """Send a request to another machine once more, on a connection of its own; its answer is lost."""
        if int.from_bytes(effect.frame[SIZE_BYTES : SIZE_BYTES + 2], "big") in NEVER_REPEATED:
            return
        self.repeated_count += 1
        copied = effect._replace(frame=bytes(effect.frame))
        self._in_this_life(self._rng.randrange(REPEATED_AFTER_MS), lambda: self._echoes.send(copied))

    # ---------------------------------------------------------------------------------------------------- disk and clock

    def _flush_delay_ms(self) -> int:
        return self._rng.randrange(SLOW_FLUSH_MS if self._rng.random() < SLOW_SHARE else FLUSH_MS)

    def _flush(self, effect: Flush, done: int) -> None:
        """Flush the path with index `done`, and the others later: a crash may happen between them."""
        error = None
        try:
            if done < len(effect.paths):
                self.disk.flush(effect.paths[done])
        except OSError as caught:
            error = caught
        if error is None and done + 1 < len(effect.paths):
            self._in_this_life(self._rng.randrange(2), lambda: self._flush(effect, done + 1))
            return
        self._trace.add(self.name, f"flushed {effect.flush_id}: {error or 'done'}")
        self._in_this_life(self._rng.randrange(3), lambda: self._handle(Flushed(effect.flush_id, error)))

    def _arm(self) -> None:
        if self.node is None:
            return
        deadline_ms = self.node.next_deadline_ms()
        if deadline_ms == self._armed_ms:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._armed_ms = deadline_ms
        self._timer = None
        if deadline_ms is not None:
            late_ms = self._rng.randrange(LATE_MS) if self._rng.random() < SLOW_SHARE else 0
            left_ms = max(0, deadline_ms - self._clock.now_ms())
            self._timer = self._virtual_time.after(left_ms + late_ms, self._deadline_reached)

    def _deadline_reached(self) -> None:
        self._timer = self._armed_ms = None
        if self._paused is not None:
            self._is_deadline_paused = True
            return
        self.handle(DeadlineReached())
