"""A second generator of damage, which knows nothing of how a repair judges, and the score of the repair on its cases.

`python -m tests.fuzz.score --seeds A-B [--state FILE] [--codecs]` writes a scene of tests.fuzz.directories, damages it in one
to three of these ways, repairs it, and compares what can be read with what was appended:

    damage                  of the files
    ----------------------  ------------------------------------------------------------------------------------------------
    torn sector             512 bytes, at a multiple of 512, are zeros, noise, or those of another sector of the file
    old sector              512 bytes are those of an earlier place of the same log: a write went to a wrong block
    bytes                   one to four bytes side by side have other values: also in the base offset of the last batch
    bits                    one to three bits, anywhere in a .log
    shifted                 bytes are missing or were inserted, up to several batches, and all behind them is shifted
    cut                     a .log ends earlier, under the mark of a clean stop or not
    state file              a checkpoint, partition.metadata, leader epochs or meta.properties is empty, of zeros, or cut
    index                   an index or a snapshot has other bytes, is cut, or is that of another segment
    mark                    .kafka_cleanshutdown is there after a crash, or gone after a clean stop
    lost file               any file of a partition is gone

The score of a case:

    kept        the share of the batches, whole before the repair, that are whole after it
    restored    every record that was appended can be read again
    silent      records that were whole before the repair, cannot be read after it, and are in no offsets that it names
    invented    records that can be read and were never appended, but for payload that nothing distinguishes from the log
                (tests.fuzz.payload_like_log)
    unstable    a second repair has something to do
    error       a command ended with a traceback, or an exit code that is not documented

Only `silent`, `invented`, `unstable` and `error` are faults: a record may be lost, but it has to be named. The scenes have
hostile payload (tests.fuzz.batches), which looks like batches. With --state each case is a line of a file, and a run goes on
where one of the same commit ended. The last line has the commit, the range and the score.
"""

from __future__ import annotations

import argparse
import functools
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from tests.damage import NotApplicableError
from tests.fuzz import outputs
from tests.fuzz.__main__ import fast_directory
from tests.fuzz.directories import MARK, Scene, write_scene
from tests.fuzz.payload_like_log import find_payload_like_log
from tests.fuzz.properties import DAMAGED, HOLES, SOUND

SECTOR_BYTES = 512
STATE_FILES = ("partition.metadata", "leader-epoch-checkpoint")
ROOT_FILES = ("recovery-point-offset-checkpoint", "replication-offset-checkpoint", "log-start-offset-checkpoint")
FAULTS = ("silent", "invented", "unstable", "error")

Damage = Callable[[Scene, random.Random], str]


def _log(scene: Scene, rng: random.Random) -> Path:
    logs = [log for one in scene.partitions for log in sorted(one.path.glob("*.log")) if log.stat().st_size]
    if not logs:
        raise NotApplicableError("no .log has bytes")
    return rng.choice(logs)


def _named(path: Path, what: str) -> str:
    return f"{path.parent.name}/{path.name}: {what}"


def torn_sector(scene: Scene, rng: random.Random) -> str:
    """A sector was not written, or was written with something else."""
    log = _log(scene, rng)
    data = bytearray(log.read_bytes())
    sectors = -(-len(data) // SECTOR_BYTES)
    at = rng.randrange(sectors) * SECTOR_BYTES
    other = rng.randrange(sectors) * SECTOR_BYTES
    size = len(data[at : at + SECTOR_BYTES])
    data[at : at + size] = rng.choice((bytes(size), rng.randbytes(size), bytes(data[other : other + size]).ljust(size, b"\0")))
    log.write_bytes(data)
    return _named(log, f"sector at byte {at}")


def old_sector(scene: Scene, rng: random.Random) -> str:
    """A sector of the segment's beginning was written to a later place."""
    log = _log(scene, rng)
    data = bytearray(log.read_bytes())
    if len(data) < 2 * SECTOR_BYTES:
        raise NotApplicableError("the .log is too small")
    at = rng.randrange(1, len(data) // SECTOR_BYTES) * SECTOR_BYTES
    data[at : at + SECTOR_BYTES] = data[:SECTOR_BYTES]
    log.write_bytes(data)
    return _named(log, f"its first sector is at byte {at} too")


def other_bytes(scene: Scene, rng: random.Random) -> str:
    """A few bytes side by side have other values; of half of the cases those of the last batch's header."""
    partition = rng.choice(scene.partitions)
    logs = [log for log in sorted(partition.path.glob("*.log")) if log.stat().st_size]
    if not logs or not partition.batches:
        raise NotApplicableError("no .log has bytes")
    log = rng.choice(logs)
    data = bytearray(log.read_bytes())
    count, at = rng.randint(1, 4), rng.randrange(len(data))
    last = data.rfind(partition.batches[-1].data)
    if last >= 0 and rng.random() < 0.5:
        at = last + rng.randrange(24)
    data[at : at + count] = rng.randbytes(len(data[at : at + count]))
    log.write_bytes(data)
    return _named(log, f"{count} bytes at {at}")


def bits(scene: Scene, rng: random.Random) -> str:
    """Some bits, anywhere in one .log."""
    log = _log(scene, rng)
    data = bytearray(log.read_bytes())
    flipped = [rng.randrange(8 * len(data)) for _ in range(rng.randint(1, 3))]
    for bit in flipped:
        data[bit // 8] ^= 1 << bit % 8
    log.write_bytes(data)
    return _named(log, f"bits {flipped}")


def shifted(scene: Scene, rng: random.Random) -> str:
    """Bytes are missing, or were inserted: some, or more than a batch has."""
    log = _log(scene, rng)
    data = log.read_bytes()
    at, count = rng.randrange(len(data)), rng.choice((1, 7, 64, rng.randrange(100, 5000)))
    is_gone = rng.random() < 0.5
    log.write_bytes(data[:at] + (data[at + count :] if is_gone else rng.randbytes(count) + data[at:]))
    return _named(log, f"{count} bytes at {at} {'gone' if is_gone else 'more'}")


def cut(scene: Scene, rng: random.Random) -> str:
    """A .log ends earlier, often where a page does."""
    log = _log(scene, rng)
    size = log.stat().st_size
    at = rng.choice((rng.randrange(size), size // 4096 * 4096, size - size % SECTOR_BYTES))
    with log.open("r+b") as file:
        file.truncate(at)
    return _named(log, f"cut to {at} of {size} bytes")


def state_file(scene: Scene, rng: random.Random) -> str:
    """A small file has no bytes, zeros, or not all of them."""
    paths = [one.path / name for one in scene.partitions for name in STATE_FILES]
    paths += [one.path / name for one in scene.directories for name in (*ROOT_FILES, "meta.properties")]
    path = rng.choice([path for path in paths if path.exists()])
    data = path.read_bytes()
    path.write_bytes(rng.choice((b"", bytes(len(data)), data[: rng.randrange(len(data) + 1)])))
    return _named(path, "empty, zeros or cut")


def index(scene: Scene, rng: random.Random) -> str:
    """An index or a snapshot is damaged, or is that of another segment."""
    suffixes = (".index", ".timeindex", ".txnindex", ".snapshot")
    paths = [path for one in scene.partitions for path in sorted(one.path.iterdir()) if path.suffix in suffixes]
    if not paths:
        raise NotApplicableError("there are no indexes")
    path = rng.choice(paths)
    data = bytearray(path.read_bytes())
    same = [other for other in paths if other.suffix == path.suffix]
    ways = [bytes(len(data)), bytes(data[: len(data) // 2]), rng.randbytes(len(data)), rng.choice(same).read_bytes()]
    path.write_bytes(rng.choice(ways))
    return _named(path, "other bytes")


def mark(scene: Scene, rng: random.Random) -> str:
    """The mark of a clean stop says the opposite of what is true."""
    directory = rng.choice(scene.directories)
    path = directory.path / ".kafka_cleanshutdown"
    if path.exists():
        path.unlink()
    else:
        path.write_bytes(MARK)
    return _named(path, "there" if path.exists() else "gone")


def lost_file(scene: Scene, rng: random.Random) -> str:
    """One file of a partition is gone."""
    paths = [path for one in scene.partitions for path in sorted(one.path.iterdir())]
    if not paths:
        raise NotApplicableError("the partitions have no files")
    path = rng.choice(paths)
    path.unlink()
    return _named(path, "gone")


DAMAGES: tuple[Damage, ...] = (
    *(torn_sector, torn_sector, old_sector, other_bytes, other_bytes, bits, shifted, cut),
    *(state_file, index, mark, lost_file),
)


# -------------------------------------------------------------------------------------------------------------- the score


def score_seed(seed: int, *, keeps_codecs: bool = False) -> dict[str, Any]:
    """Run the case of a seed -> its damages and its score; `keeps_codecs` is another scene for the same seed."""
    rng = random.Random(f"score codecs {seed}" if keeps_codecs else f"score {seed}")
    with tempfile.TemporaryDirectory(prefix=f"score-{seed}-", dir=fast_directory()) as parent:
        scene = write_scene(Path(parent), rng, keeps_codecs=keeps_codecs)
        done = []
        for _ in range(rng.choice((1, 1, 2, 2, 3))):
            try:
                done.append(f"{(damage := rng.choice(DAMAGES)).__name__}: {damage(scene, rng)}")
            except NotApplicableError:
                continue
        result: dict[str, Any] = {"seed": seed, "codecs": keeps_codecs, "damages": done}
        try:
            result.update(_score(scene))
        except Exception as error:  # a fault of kcli is what is looked for
            result.update(error=f"{type(error).__name__}: {error}"[:300])
    return result


def _whole(scene: Scene) -> set[tuple[str, int]]:
    """The batches whose bytes are in a .log of their partition: (directory, base offset)."""
    found = set()
    for one in scene.partitions:
        data = b"".join(log.read_bytes() for log in sorted(one.path.glob("*.log")))
        found |= {(str(one.path), batch.base_offset) for batch in one.batches if batch.data in data}
    return found


def _score(scene: Scene) -> dict[str, Any]:
    paths = [directory.path for directory in scene.directories]
    appended = {(str(one.path), record) for one in scene.partitions for record in one.records.values()}
    whole = _whole(scene)
    payloads = {str(one.path): find_payload_like_log(one) for one in scene.partitions}
    holes: list[tuple[str, int, float]] = []
    errors = []
    for path in paths:
        printed = outputs.run("verify", "--repair", "--apply", "--output", "json", path)
        if printed.exit_code not in (SOUND, DAMAGED, HOLES):
            errors.append(f"repair ends with {printed.exit_code}: {printed.stderr[:200]}")
            continue
        for line in printed.json_lines():
            if line["type"] == "hole":
                at = Path(line["path"])
                end = float("inf") if line["endOffset"] is None else line["endOffset"]
                holes.append((str(at if at.is_dir() or "." not in at.name else at.parent), line["firstOffset"], end))
    kept = _whole(scene)
    shown = [(one.directory, one.record) for one in outputs.dumped_json(*paths)]
    read = set(shown)
    silent = [
        (name, record.offset)
        for one in scene.partitions
        for batch in one.batches
        for name, record in ((str(one.path), record) for record in batch.records)
        if (name, batch.base_offset) in whole
        and (name, record) not in read
        and not any(name == at and first <= record.offset < end for at, first, end in holes)
    ]
    again = [outputs.run("verify", "--repair", "--output", "json", path).json_lines()[-1] for path in paths]
    return {
        "kept": len(kept & whole) / len(whole) if whole else 1.0,
        "restored": appended <= read,
        "silent": sorted({offset for _, offset in silent})[:20],
        "invented": sorted({one.offset for at, one in shown if (at, one) not in appended and not payloads[at].has(one)})[:20],
        "unstable": sum(one.get("changes", 0) for one in again),
        "error": "; ".join(errors),
    }


def _commit() -> str:
    done = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def summary(commit: str, seeds: range, results: list[dict[str, Any]]) -> str:
    """The line of a run: commit, range, and the score of all cases."""
    scored = [one for one in results if "kept" in one]
    kept = sum(one["kept"] for one in scored) / len(scored) if scored else 0.0
    restored = sum(one["restored"] for one in scored)
    faults = ", ".join(f"{name} {sum(bool(one.get(name)) for one in results)}" for name in FAULTS)
    return (
        f"commit {commit}, seeds {seeds[0]}-{seeds[-1]}, {len(results)} cases: whole batches kept {100 * kept:.3f} %, "
        f"all records restored in {restored}, {faults}"
    )


def main(words: list[str] | None = None) -> int:
    """Run a range of seeds -> 1 where a case has a fault."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.score", description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", required=True, help="A-B, or one number")
    parser.add_argument("--state", type=Path, help="a file that has the results, to go on where a run ended")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--codecs", action="store_true", help="scenes of compacted logs whose batches keep their codecs")
    arguments = parser.parse_args(words)
    run = functools.partial(score_seed, keeps_codecs=arguments.codecs)
    first, _, last = arguments.seeds.partition("-")
    seeds, commit = range(int(first), int(last or first) + 1), _commit()
    results = []
    if arguments.state is not None and arguments.state.exists():
        rows = [json.loads(line) for line in arguments.state.read_text().splitlines()]
        rows = [row for row in rows if (row["commit"], row.get("codecs", False)) == (commit, arguments.codecs)]
        results = [row for row in rows if row["seed"] in seeds]
    left = sorted(set(seeds) - {row["seed"] for row in results})
    with ProcessPoolExecutor(arguments.processes) as pool:
        for result in pool.map(run, left, chunksize=4) if len(left) > 1 else map(run, left):
            results.append({"commit": commit, **result})
            if arguments.state is not None:
                with arguments.state.open("a") as file:
                    file.write(json.dumps(results[-1]) + "\n")
            found = {name: result[name] for name in FAULTS if result.get(name)}
            if found:
                print(f"seed {result['seed']}: {' | '.join(result['damages'])}\n    {found}", flush=True)
    print(summary(commit, seeds, results))
    return int(any(one.get(name) for one in results for name in FAULTS))


if __name__ == "__main__":
    sys.exit(main())
