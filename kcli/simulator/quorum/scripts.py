"""Scripts of a quorum: a text with commands, and behind each one what the replicas did (as etcd's raft has them).

    command          what happens
    ---------------  --------------------------------------------------------------------------------------------------------
    voters 1 2 3     the nodes 1, 2 and 3 are started as voters of a static quorum; `dynamic voters`: of a dynamic one
    node 4           a controller that is not a voter is started
    timeout 1        the election or fetch timeout of n1 is over; of a leader, its next deadline
    tick 1           the next deadline of n1 is reached, whichever it is
    settle           messages arrive and files are flushed, in the order in which they were sent, until nothing is left
    append 1 7       a client appends the value 7 at n1
    cut 1            what is sent from and to n1 is lost
    heal             nothing is lost any more
    crash 1          n1 loses its power: what it has not flushed is gone
    restart 1        n1 starts again
    hold 1           the snapshot that n1 fetches is not flushed before `release 1`
    snapshot 1       n1 makes a snapshot of what is committed, and removes the log below
    add 4, remove 3  a tool asks the leader to change the voters
    show             a line for each node

A command is followed by a line `----`, the output, and an empty line; lines that begin with # are comments. Time is
abstract, as in small_worlds: a deadline is reached only by `timeout`.
"""

from __future__ import annotations

from collections.abc import Callable

from kcli.server.raft.messages import AddRaftVoter, RemoveRaftVoter, Request
from kcli.server.raft.quorum_state import NEVER_MS
from kcli.simulator.quorum.checks import name_of
from kcli.simulator.quorum.message_text import CLIENT, actor, text_of
from kcli.simulator.quorum.small_worlds import FirstChoice
from kcli.simulator.quorum.world import CLUSTER_ID, Message, QuorumWorld, SimulatedReplica, WorldConfig, endpoints_of

_RULE = "----"
_MOST_EVENTS = 1000


class ScriptError(ValueError):
    """A script with a command that does not exist or cannot be run; the message is one sentence."""


def run_script(text: str) -> str:
    """Return a script with the output of each command. Raises ScriptError, and QuorumFailure for a violated guarantee."""
    script = _Script()
    parts: list[str] = []
    is_output = False
    for line in text.splitlines():
        if line == _RULE:
            is_output = True
        elif not line:
            is_output = False
        elif not is_output and line.startswith("#"):
            parts.append(line)
        elif not is_output:
            parts += [line, _RULE, *script.run(line), ""]
    return "\n".join(parts) + "\n"


class _Script:
    """A quorum and what is under way in it."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._under_way: list[Message] = []
        self._cut: set[int] = set()
        self._held: set[int] = set()
        self._world: QuorumWorld | None = None
        self._numbers: tuple[int, ...] = ()
        self._is_dynamic = False

    @property
    def world(self) -> QuorumWorld:
        """The quorum. Raises ScriptError before the first command `voters`."""
        if self._world is None:
            raise ScriptError("a script begins with voters or dynamic voters")
        return self._world

    def run(self, line: str) -> list[str]:
        """Run a command and return its output. Raises ScriptError."""
        self._lines = []
        words = line.removeprefix("dynamic ").split()
        self._is_dynamic = line.startswith("dynamic ")
        command = _COMMANDS.get(words[0])
        if command is None or not all(word.isdigit() for word in words[1:]):
            raise ScriptError(f"{line!r} is not a command of a script")
        command(self, *map(int, words[1:]))
        self._collect()
        return self._lines

    def _trace(self, who: str, text: str) -> None:
        self._lines.append(f"{who} {text}")

    def _replica(self, node_id: int) -> SimulatedReplica:
        if node_id not in self.world.replicas:
            raise ScriptError(f"there is no node {node_id}")
        return self.world.replicas[node_id]

    def _collect(self) -> None:
        world = self.world
        sent, world.outbox = world.outbox, []
        for message in sent:
            if self._cut & {message.source, message.target}:
                self._lines.append(f"lost: {text_of(message.body)} of {actor(message.source)} to {actor(message.target)}")
            else:
                self._under_way.append(message)

    # ---------------------------------------------------------------------------------------------------------- commands

    def _voters(self, *node_ids: int) -> None:
        nodes = tuple(range(1, max(node_ids) + 2))
        self._world = QuorumWorld(
            WorldConfig(nodes, node_ids, self._is_dynamic, is_time_abstract=True), FirstChoice(), self._trace
        )
        for node_id in node_ids:
            self.world.start(self._replica(node_id))
            self._collect()

    def _node(self, node_id: int) -> None:
        self.world.start(self._replica(node_id))

    def _timeout(self, node_id: int) -> None:
        replica = self._replica(node_id)
        if replica.core is None:
            raise ScriptError(f"node {node_id} is down and has no deadline")
        core = replica.core
        replica.clock_ms = core.deadline_ms if core.quorum.deadline_ms >= NEVER_MS else core.quorum.deadline_ms
        self.world.time(replica)

    def _tick(self, node_id: int) -> None:
        replica = self._replica(node_id)
        if replica.core is None or replica.core.deadline_ms >= NEVER_MS:
            raise ScriptError(f"node {node_id} has no deadline")
        replica.clock_ms = replica.core.deadline_ms
        self.world.time(replica)

    def _append(self, node_id: int, *values: int) -> None:
        if not self.world.append(self._replica(node_id), *values):
            self._lines.append(f"n{node_id} does not lead")

    def _cut_off(self, *node_ids: int) -> None:
        self._cut |= set(node_ids)
        lost = [one for one in self._under_way if self._cut & {one.source, one.target}]
        self._under_way = [one for one in self._under_way if one not in lost]

    def _heal(self) -> None:
        self._cut.clear()

    def _crash(self, node_id: int) -> None:
        self.world.crash(self._replica(node_id), 0)

    def _hold(self, node_id: int) -> None:
        self._held.add(node_id)

    def _release(self, node_id: int) -> None:
        self._held.discard(node_id)

    def _snapshot(self, node_id: int) -> None:
        self.world.snapshot(self._replica(node_id))

    def _add(self, node_id: int) -> None:
        self._ask(AddRaftVoter(CLUSTER_ID, self._replica(node_id).key, endpoints_of(node_id)))

    def _remove(self, node_id: int) -> None:
        self._ask(RemoveRaftVoter(CLUSTER_ID, self._replica(node_id).key))

    def _ask(self, request: Request) -> None:
        for replica in self.world.replicas.values():
            if replica.core is not None and replica.core.quorum.is_leader:
                self.world.request(replica, request)

    def _settle(self) -> None:
        for _ in range(_MOST_EVENTS):
            if not self._next_event():
                return
        raise ScriptError(f"the quorum does not settle within {_MOST_EVENTS} events")

    def _next_event(self) -> bool:
        world = self.world
        for replica in world.replicas.values():
            if replica.core is None:
                continue
            is_held = replica.node_id in self._held
            if world.store(replica) or world.flush(replica) or (not is_held and world.receive(replica)):
                self._collect()
                return True
        if not self._under_way:
            return False
        message = self._under_way.pop(0)
        if message.target == CLIENT:
            self._lines.append(f"the tool gets: {text_of(message.body)}")
        else:
            world.deliver(message)
        self._collect()
        return True

    def _show(self) -> None:
        for replica in self.world.replicas.values():
            core = replica.core
            if core is None and replica.life == 0:
                continue
            state = "down" if core is None else f"{core.quorum.role} in epoch {core.quorum.epoch}"
            voters = " ".join(name_of(key) for key in self.world.voters_of(replica))
            self._lines.append(
                f"n{replica.node_id}: {state}, log {replica.log.start_offset}..{replica.log.end_offset}, "
                f"high watermark {replica.high_watermark}, voters {voters}"
            )


_COMMANDS: dict[str, Callable[..., None]] = {
    "voters": _Script._voters,
    "node": _Script._node,
    "timeout": _Script._timeout,
    "tick": _Script._tick,
    "settle": _Script._settle,
    "append": _Script._append,
    "cut": _Script._cut_off,
    "heal": _Script._heal,
    "crash": _Script._crash,
    "restart": _Script._node,
    "hold": _Script._hold,
    "release": _Script._release,
    "snapshot": _Script._snapshot,
    "add": _Script._add,
    "remove": _Script._remove,
    "show": _Script._show,
}
