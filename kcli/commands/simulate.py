"""`kcli simulate`: runs a node on a simulated machine, with clients, crashes and disk errors, from random seeds."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from kcli.commands.output import EXIT_FINDINGS, EXIT_OK, CannotRun, is_terminal, print_text

if TYPE_CHECKING:
    from kcli.simulator.node_maker import NodeMaker
    from kcli.simulator.runner import Simulation

ARGUMENTS = "--seed N | --seeds A-B | --small-worlds STATES"
DESCRIPTION = """\
Runs a broker and controller in virtual time. Its disk loses, tears or reorders writes that were not flushed, fills up or
fails; connections break; the process is killed at any step. Clients write and read, and check Kafka's guarantees; with
--workload coordination they are members of groups and transactional producers. --workload quorum runs the controllers of
a metadata quorum without brokers: elections, replication, snapshots, changes of the voters. --workload cluster runs whole
nodes, controllers and brokers, on machines that lose each other, pause, die and lose power. A run is reproducible from its
seed. For a seed that fails, kcli prints the command that repeats the run. --small-worlds runs no seeds: it searches quorums
of two and three voters completely, every order of messages, timeouts and a crash."""
EPILOG = """\
Exit codes: 0 no seed failed; 1 a seed failed; 2 could not run. docs/simulator.md describes what is simulated and what is
checked."""

TAIL_LINES = 60
WORKLOADS = ("logs", "coordination", "quorum", "cluster")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `kcli simulate`."""
    seeds = parser.add_mutually_exclusive_group(required=True)
    seeds.add_argument("--seed", type=int, metavar="N", help="one seed")
    seeds.add_argument("--seeds", metavar="A-B", help="all seeds from A to B")
    seeds.add_argument(
        "--small-worlds",
        type=int,
        metavar="STATES",
        help="search small quorums completely, or up to this number of states each",
    )
    parser.add_argument(
        "--workload",
        choices=WORKLOADS,
        default=WORKLOADS[0],
        help="logs: topics, records, compaction (default); coordination: groups and transactions; quorum: controllers; "
        "cluster: several whole nodes",
    )
    parser.add_argument("--steps", type=int, metavar="N", help="number of events with faults, before the final checks")
    parser.add_argument("--trace", action="store_true", help="print the whole trace, not only the end of a failed run's trace")
    parser.add_argument(
        "--tail",
        type=int,
        metavar="N",
        default=TAIL_LINES,
        help=f"number of trace lines for a failed run (default: {TAIL_LINES})",
    )


def _seeds(args: argparse.Namespace) -> range:
    if args.seed is not None:
        return range(args.seed, args.seed + 1)
    first, dash, last = args.seeds.partition("-")
    if not (dash and first.isdigit() and last.isdigit() and int(first) <= int(last)):
        raise CannotRun(f"--seeds {args.seeds}: give the first and the last one, as in --seeds 0-299")
    return range(int(first), int(last) + 1)


class Outcome(Protocol):
    """The result of a seed."""

    @property
    def seed(self) -> int:
        """The seed."""

    @property
    def failure(self) -> str:
        """What failed; empty if nothing did."""

    @property
    def digest(self) -> str:
        """The digest of the trace."""

    @property
    def tail(self) -> list[str]:
        """The last lines of the trace."""

    @property
    def summary(self) -> str:
        """What happened, in one line."""


RunSeed = Callable[[int, int, Callable[[str], None] | None], Outcome]


def _workload(name: str) -> tuple[RunSeed, int]:
    """Return the function that runs a seed of a workload (seed, steps, trace), and its number of steps."""
    if name == "quorum":
        from kcli.simulator.quorum import simulation

        return lambda seed, steps, write: simulation.QuorumSimulation(seed, steps=steps, write=write).run(), (
            simulation.DEFAULT_STEPS
        )
    if name == "cluster":
        from kcli.simulator import cluster

        return lambda seed, steps, write: cluster.ClusterSimulation(seed, steps=steps, write=write).run(), cluster.DEFAULT_STEPS
    if name == "coordination":
        from kcli.simulator.coordination import workload
        from kcli.simulator.coordination.node_settings import make_coordination_node

        return _node_runner(workload.CoordinationSimulation, make_coordination_node), workload.DEFAULT_STEPS
    from kcli.simulator import runner
    from kcli.simulator.node_maker import NodeMaker

    return _node_runner(runner.Simulation, NodeMaker), runner.DEFAULT_STEPS


def _node_runner(kind: type[Simulation], make_nodes: Callable[[int], NodeMaker]) -> RunSeed:
    def run_seed(seed: int, steps: int, write: Callable[[str], None] | None) -> Outcome:
        make_node = make_nodes(seed)
        rounds = make_node.cleaning_rounds
        return kind(seed, make_node, make_node.directories, steps=steps, write=write, cleaning_rounds=rounds).run()

    return run_seed


def run(args: argparse.Namespace) -> int:
    """Run the seeds and return the exit code. Raises CannotRun if --seeds is not a range."""
    if args.small_worlds is not None:
        return _search_small_worlds(args.small_worlds)
    run_seed, default_steps = _workload(args.workload)
    steps = default_steps if args.steps is None else args.steps
    failed: list[Outcome] = []
    seeds = _seeds(args)
    begin = time.monotonic()
    for seed in seeds:
        outcome = run_seed(seed, steps, print_text if args.trace else None)
        if outcome.failure:
            failed.append(outcome)
            options = "" if args.workload == WORKLOADS[0] else f" --workload {args.workload}"
            options += "" if steps == default_steps else f" --steps {steps}"
            _print_failure(outcome, options, 0 if args.trace else args.tail)
        _print_progress(outcome, seeds, len(failed))
    print_text(
        f"{len(seeds)} seed{'s' if len(seeds) > 1 else ''}, {len(failed)} failed, {time.monotonic() - begin:.1f} s"
        + (f"; digest {outcome.digest[:16]}" if len(seeds) == 1 else "")
    )
    return EXIT_FINDINGS if failed else EXIT_OK


def _search_small_worlds(most_states: int) -> int:
    """Search each small quorum, print how many states it has, and return the exit code."""
    from kcli.simulator.quorum.small_worlds import LARGE, SMALL, search

    exit_code = EXIT_OK
    for name, (config, bounds, is_led) in (SMALL | LARGE).items():
        begin = time.monotonic()
        found = search(config, bounds, is_led=is_led, most_states=most_states)
        extent = "all" if found.is_complete else "the first"
        print_text(f"{name}: {extent} {found.states} states, {found.steps} steps, {time.monotonic() - begin:.1f} s")
        if found.failure:
            exit_code = EXIT_FINDINGS
            print_text("\n".join([*found.trace, f"failed: {found.failure}"]))
    return exit_code


def _print_progress(outcome: Outcome, seeds: range, failed: int) -> None:
    done = outcome.seed - seeds.start + 1
    line = f"seed {outcome.seed}: {outcome.summary}"
    if is_terminal(2):
        sys.stderr.write(f"\r{done}/{len(seeds)}, {failed} failed; {line}\x1b[K" + ("\n" if done == len(seeds) else ""))
    elif len(seeds) <= 20 or done % 50 == 0 or done == len(seeds):
        sys.stderr.write(f"{done}/{len(seeds)}, {failed} failed; {line}\n")
    sys.stderr.flush()


def _print_failure(outcome: Outcome, options: str, tail_lines: int) -> None:
    tail = outcome.tail[-tail_lines:] if tail_lines else []
    print_text(
        "\n".join(
            [
                *([f"--- the last {len(tail)} lines of the trace of seed {outcome.seed} ---", *tail, "---"] if tail else []),
                f"seed {outcome.seed} failed: {outcome.failure}",
                f"repeat it with: kcli simulate --seed {outcome.seed}{options}",
            ]
        )
    )
