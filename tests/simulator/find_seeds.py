"""`python -m tests.simulator.find_seeds WORKLOAD [FAULT ...]`: find the cheapest seed of each built-in fault.

Prints each seed that is simulated and, with --write, puts the cheapest ones that find their fault into seeds.txt. FAULT is a
part of a fault's name; without one, all faults of the workload are searched. Run it when the tests of faults have become slow:
after a change of the order of events, the listed seed of a fault may not find it any more.

--upto N     the seeds to try are below N (40)
--enough N   stop at a fault when N seeds have found it (1), beginning with the listed one
--write      write seeds.txt anew
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from built_in_faults import Search, listed_seeds, write_seeds
from wrong_clients import CLIENTS, LOG_CLIENTS
from wrong_clusters import CLUSTERS
from wrong_coordinators import COORDINATORS
from wrong_nodes import NODES
from wrong_quorums import QUORUMS
from wrong_replicas import REPLICAS

FAULT_LISTS = {one.workload: one for one in (NODES, COORDINATORS, CLIENTS, LOG_CLIENTS, QUORUMS, CLUSTERS, REPLICAS)}


def main() -> int:
    """Search the faults; return 1 if a fault was not found."""
    parser = argparse.ArgumentParser(prog="find_seeds", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("workload", choices=FAULT_LISTS)
    parser.add_argument("faults", nargs="*")
    parser.add_argument("--upto", type=int, default=40)
    parser.add_argument("--enough", type=int, default=1)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_intermixed_args()  # options may follow the names
    listed, missed = listed_seeds(), 0
    of_workload = FAULT_LISTS[args.workload]
    for what in of_workload.faults:
        if args.faults and not any(part in what for part in args.faults):
            continue
        key = args.workload, what
        found: list[Search] = []
        for one in of_workload.search(what, iter(dict.fromkeys((listed.get(key, 0), *range(args.upto))))):
            print(
                f"{'found' if one.is_found else '-':<6}{one.seed:>4} {one.seconds:5.1f} s  {what}: {one.failure[:80]}",
                flush=True,
            )
            found += [one] * one.is_found
            if len(found) == args.enough:
                break
        missed += not found
        if found:
            # The seed comes first, so only what it costs itself counts.
            cheapest = min(found, key=lambda one: one.seconds).seed
            if args.write:
                write_seeds(listed_seeds() | {key: cheapest})  # another workload may be searched at the same time
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
