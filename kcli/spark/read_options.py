"""The options of `spark.read.format("kafka-log")`, checked and turned into values.

The names are those of Spark's Kafka source if the meaning is the same; case is ignored, as everywhere in Spark.

    option                              values                                        default
    ----------------------------------  --------------------------------------------  ------------------------------------
    path, paths                         paths or patterns: one, comma-separated or a  (required)
                                        JSON list; an existing path may have commas;
                                        or kafka://HOST:PORT,... for a running cluster
    table                               see kcli.spark.table_schemas                  records
    columns                             names, comma-separated                        all
    subscribe                           topics, comma-separated                       all
    subscribePattern                    a regular expression for whole topic names
    assign                              {"topic":[0,1]}
    startingOffsets                     earliest, latest, {"topic":{"0":23,"1":-2}}   earliest
    endingOffsets                       latest, {"topic":{"0":50,"1":-1}}             latest
    exactOffsets                        true, false: read only the partitions in      false
                                        startingOffsets and endingOffsets; a log that
                                        ends before fails the job
    startingTimestamp, endingTimestamp  ms since 1970, or ISO 8601 (UTC without a zone)
    startingOffsetsByTimestamp,         {"topic":{"0":1700000000000}}
      endingOffsetsByTimestamp
    startingOffsetsByTimestampStrategy  error, latest: if no record is that recent    error
    kafka.isolation.level               read_uncommitted, read_committed              read_uncommitted
    includeHeaders                      true, false                                   true
    includeControl                      true, false                                   false
    includeAborted, includeOpen         true, false: under read_committed             false
    includeInternal                     true, false: records of Kafka's own topics    false
                                        (always read if subscribe, assign or a path
                                        names them)
    includeBelowLogStart                true, false                                   false
    stopAtHighWatermark                 auto: if it is known and no broker was        auto
                                        killed since; true; false
    onCorrupt                           fail, skip                                    fail
    duplicatePartitions                 fail, longest, all                            fail
    minPartitions                       number of splits, at least                    the machine's cores;
                                                                                      a stream: 1
    maxPartitionBytes                   bytes of a segment for one task, at most      64 MiB
    maxOffsetsPerTrigger                streaming: offsets in one micro-batch         no limit
    failOnDataLoss                      true, false                                   true
    arrowBatchRows, arrowBatchBytes     size of one Arrow batch, at most              16384, 4 MiB
    kafka.security.*, kafka.ssl.*,      TLS and SASL of the client of a cluster:      no protection
    kafka.sasl.*                        kcli.client.security_config

As in Spark, a timestamp takes precedence over timestamps by partition, and these over offsets. `isolation.level` and
`isolationLevel` are aliases of kafka.isolation.level; other `kafka.` options of a connection are ignored, except a misspelt
kafka.security.protocol, without which connections have no protection.
Spark passes some options of its own to a source (a table's owner and location): `location` is a path, the others are ignored.
Any other name is refused, so that a typing error does not read too much.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from kcli.client.client_config import PROTOCOL, SCHEME, SECURITY_PREFIXES, is_like_protocol
from kcli.spark import table_schemas as tables

EARLIEST = "earliest"
LATEST = "latest"
READ_COMMITTED = "read_committed"
READ_UNCOMMITTED = "read_uncommitted"
FAIL, SKIP, LONGEST, ALL, ERROR = "fail", "skip", "longest", "all", "error"
AUTO, TRUE, FALSE = "auto", "true", "false"

# The numbers for them in the JSON of offsets.
LATEST_OFFSET = -1
EARLIEST_OFFSET = -2

Assignment = dict[str, list[int]]
ByPartition = dict[str, dict[int, int]]
Offsets = str | ByPartition

DEFAULT_PARTITION_BYTES = 64 * 1024 * 1024
DEFAULT_BATCH_ROWS = 16_384
DEFAULT_BATCH_BYTES = 4 * 1024 * 1024


class OptionError(ValueError):
    """An option that is unknown or invalid; the message is one sentence."""


class ClientSettings(dict[str, str]):
    """Settings of the client of a cluster, which may have passwords: they are not printed."""

    def __repr__(self) -> str:
        return f"<{len(self)} settings of a client>"


class ReadOptions(NamedTuple):
    """All options of a read; see the module. At most one of `topics`, `pattern` and `assignment` is set."""

    paths: tuple[str, ...] = ()
    table: str = tables.RECORDS
    columns: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assignment: Assignment | None = None
    starting_offsets: Offsets = EARLIEST
    ending_offsets: Offsets = LATEST
    exact_offsets: bool = False
    starting_timestamp: int | None = None
    ending_timestamp: int | None = None
    starting_by_timestamp: ByPartition | None = None
    ending_by_timestamp: ByPartition | None = None
    timestamp_strategy: str = ERROR
    isolation: str = READ_UNCOMMITTED
    include_headers: bool = True
    include_control: bool = False
    include_aborted: bool = False
    include_open: bool = False
    include_internal: bool = False
    include_below_log_start: bool = False
    stop_at_high_watermark: str = AUTO
    on_corrupt: str = FAIL
    duplicate_partitions: str = FAIL
    min_partitions: int | None = None
    max_partition_bytes: int = DEFAULT_PARTITION_BYTES
    max_offsets_per_trigger: int | None = None
    fail_on_data_loss: bool = True
    arrow_batch_rows: int = DEFAULT_BATCH_ROWS
    arrow_batch_bytes: int = DEFAULT_BATCH_BYTES
    report_column: str | None = None
    report_path: str | None = None
    client: ClientSettings = ClientSettings()

    def named_by_partition(self) -> dict[str, ByPartition]:
        """Return the options that name partitions one by one, with their values, if they are given.

        Without those of exactOffsets: a partition of the plan may be gone when it is read.
        """
        if self.exact_offsets:
            return {}
        given = {
            "startingOffsets": self.starting_offsets,
            "endingOffsets": self.ending_offsets,
            "startingOffsetsByTimestamp": self.starting_by_timestamp,
            "endingOffsetsByTimestamp": self.ending_by_timestamp,
        }
        return {name: value for name, value in given.items() if isinstance(value, dict)}

    @property
    def of_cluster(self) -> bool:
        """True if a running cluster is read, not log directories."""
        return any(path.startswith(SCHEME) for path in self.paths)

    @property
    def is_start_a_time(self) -> bool:
        """True if timestamps decide where the read begins; as in Spark, they take precedence over offsets."""
        return self.starting_timestamp is not None or self.starting_by_timestamp is not None

    @property
    def is_end_a_time(self) -> bool:
        """True if timestamps decide where the read ends."""
        return self.ending_timestamp is not None or self.ending_by_timestamp is not None

    @property
    def read_committed(self) -> bool:
        """True if records of transactions that are not committed are left out."""
        return self.isolation == READ_COMMITTED

    @property
    def cuts_at_last_stable_offset(self) -> bool:
        """True if only records below the last stable offset are read, as by Kafka's consumer."""
        return self.read_committed and not self.include_open


def parse_options(given: Mapping[str, str]) -> ReadOptions:
    """Parse the options of a read. Raises OptionError for the first that is invalid."""
    values: dict[str, Any] = {}
    client = ClientSettings()
    for name, text in given.items():
        key = _ALIASES.get(name.lower(), name.lower())
        if key in _OPTIONS:
            field, parse = _OPTIONS[key]
            values[field] = parse(_NAMES[key], text)
        elif key.startswith(_SECURITY_PREFIXES):
            client[key.removeprefix(_KAFKA)] = text
        elif is_like_protocol(key.removeprefix(_KAFKA)):
            raise OptionError(f"there is no option {name!r}; did you mean {_KAFKA}{PROTOCOL}?")
        elif key == "pushdown":
            raise OptionError(_NO_PUSHDOWN)
        elif not key.startswith(("kafka.", "option.")) and key not in _TABLE_PROPERTIES:
            raise OptionError(_unknown(name))
    if path := values.pop("path", None):
        values["paths"] = (*path, *values.get("paths", ()))
    options = ReadOptions(**values, client=client)
    if not given:
        raise OptionError(_NO_PATH_IN_TABLE)
    _check_together(options)
    return options


def _check_together(options: ReadOptions) -> None:
    if not options.paths:
        raise OptionError('there is no path: use .load("DIR") or .option("paths", "DIR1,DIR2")')
    if sum(1 for choice in (options.topics, options.pattern, options.assignment) if choice) > 1:
        raise OptionError("only one of subscribe, subscribePattern and assign can be given")
    if options.exact_offsets and not (isinstance(options.starting_offsets, dict) and isinstance(options.ending_offsets, dict)):
        raise OptionError("exactOffsets needs startingOffsets and endingOffsets as JSON with the offsets of each partition")
    if options.exact_offsets and any(
        offset < 0
        for named in (options.starting_offsets, options.ending_offsets)
        if isinstance(named, dict)
        for offsets in named.values()
        for offset in offsets.values()
    ):
        raise OptionError("exactOffsets needs offsets of 0 or more: earliest (-2) and latest (-1) are not exact")
    if options.table in tables.OF_FILES and (options.is_start_a_time or options.is_end_a_time or _names_offsets(options)):
        raise OptionError(f"the table {options.table} has all entries of its files: offsets and times choose none of them")
    if options.ending_offsets == EARLIEST:
        raise OptionError("endingOffsets cannot be earliest")
    if isinstance(options.ending_offsets, dict) and any(
        offset == EARLIEST_OFFSET for offsets in options.ending_offsets.values() for offset in offsets.values()
    ):
        raise OptionError("endingOffsets cannot be earliest (-2) for a partition")


def _names_offsets(options: ReadOptions) -> bool:
    return options.starting_offsets != EARLIEST or options.ending_offsets != LATEST


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name.lower(), list(_OPTIONS), 1)
    hint = f"; did you mean {_NAMES[near[0]]}?" if near else f"; there are {', '.join(_NAMES.values())}"
    return f"there is no option {name!r}{hint}"


# ------------------------------------------------------------------------------------------------------------- parsers


def _words(name: str, text: str) -> tuple[str, ...]:
    return tuple(word for word in (part.strip() for part in text.split(",")) if word)


def _paths(name: str, text: str) -> tuple[str, ...]:
    """Return the paths of a JSON list, or one text: log_partitions.given_paths checks whether its commas are part of a path."""
    try:
        parsed = json.loads(text) if text.lstrip().startswith("[") else None
    except ValueError:
        parsed = None  # a pattern may begin with a bracket
    if isinstance(parsed, list) and all(isinstance(path, str) for path in parsed):
        return tuple(parsed)
    return (text,) if text.strip() else ()


def _instant(name: str, text: str) -> int:
    """Return the milliseconds since 1970 of a number, or of an ISO 8601 date or time."""
    if text.strip().lstrip("-").isdigit():
        return _number(name, text)
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        raise OptionError(
            f"{name} must be ms since 1970 or an ISO 8601 time such as 2026-11-20T06:00:00Z, not {text!r}"
        ) from None
    zoned = found if found.tzinfo is not None else found.replace(tzinfo=UTC)
    return round(zoned.timestamp() * 1000)


def _text(name: str, text: str) -> str:
    return text


def _pattern(name: str, text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise OptionError(f"{name} {text!r} is not a regular expression: {error}") from None
    return text


def _flag(name: str, text: str) -> bool:
    if text.strip().lower() not in ("true", "false"):
        raise OptionError(f"{name} must be true or false, not {text!r}")
    return text.strip().lower() == "true"


def _one_of(*choices: str) -> Callable[[str, str], str]:
    def parse(name: str, text: str) -> str:
        if text.strip().lower() not in choices:
            raise OptionError(f"{name} must be {' or '.join(choices)}, not {text!r}")
        return text.strip().lower()

    return parse


_UNITS = {"": 1, "b": 1, "k": 2**10, "kb": 2**10, "m": 2**20, "mb": 2**20, "g": 2**30, "gb": 2**30}


def _positive(name: str, text: str) -> int:
    return _number(name, text, 1)


def _number(name: str, text: str, least: int = 0) -> int:
    try:
        number = int(text.strip())
    except ValueError:
        raise OptionError(f"{name} must be a whole number, not {text!r}") from None
    if number < least:
        raise OptionError(f"{name} must be at least {least}, not {number}")
    return number


def _size(name: str, text: str) -> int:
    found = re.fullmatch(r"\s*([0-9]+)\s*([a-zA-Z]*)\s*", text)
    if found is None or found[2].lower() not in _UNITS or int(found[1]) == 0:
        raise OptionError(f"{name} must be a size such as 67108864 or 64m, not {text!r}")
    return int(found[1]) * _UNITS[found[2].lower()]


def _json(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise OptionError(f"{name} is not JSON ({error}): {text!r}") from None


def _assignment(name: str, text: str) -> Assignment:
    parsed = _json(name, text)
    if not isinstance(parsed, dict) or not all(
        isinstance(partitions, list) and all(type(partition) is int for partition in partitions)
        for partitions in parsed.values()
    ):
        raise OptionError(f'{name} must look like {{"topic":[0,1]}}, not {text!r}')
    return parsed


def _by_partition(name: str, text: str) -> ByPartition:
    parsed = _json(name, text)
    try:
        return {
            topic: {int(partition): _whole(number) for partition, number in partitions.items()}
            for topic, partitions in parsed.items()
        }
    except (AttributeError, TypeError, ValueError):
        raise OptionError(f'{name} must look like {{"topic":{{"0":23,"1":-2}}}}, not {text!r}') from None


def _whole(number: object) -> int:
    if type(number) is not int:
        raise ValueError
    return number


def _offsets(name: str, text: str) -> Offsets:
    if text.strip().lower() in (EARLIEST, LATEST):
        return text.strip().lower()
    if not text.lstrip().startswith("{"):
        raise OptionError(f'{name} must be earliest, latest or JSON like {{"topic":{{"0":23}}}}, not {text!r}')
    offsets = _by_partition(name, text)
    if any(offset < EARLIEST_OFFSET for of_topic in offsets.values() for offset in of_topic.values()):
        raise OptionError(f"{name} has an offset below -2 (earliest) and -1 (latest): {text!r}")
    return offsets


# option -> (field of ReadOptions, parser)
_TABLE: dict[str, tuple[str, Callable[[str, str], Any]]] = {
    "path": ("path", _paths),
    "paths": ("paths", _paths),
    "table": ("table", _one_of(*tables.TABLES)),
    "columns": ("columns", _words),
    "subscribe": ("topics", _words),
    "subscribePattern": ("pattern", _pattern),
    "assign": ("assignment", _assignment),
    "startingOffsets": ("starting_offsets", _offsets),
    "endingOffsets": ("ending_offsets", _offsets),
    "exactOffsets": ("exact_offsets", _flag),
    "startingTimestamp": ("starting_timestamp", _instant),
    "endingTimestamp": ("ending_timestamp", _instant),
    "startingOffsetsByTimestamp": ("starting_by_timestamp", _by_partition),
    "endingOffsetsByTimestamp": ("ending_by_timestamp", _by_partition),
    "startingOffsetsByTimestampStrategy": ("timestamp_strategy", _one_of(LATEST, ERROR)),
    "kafka.isolation.level": ("isolation", _one_of(READ_UNCOMMITTED, READ_COMMITTED)),
    "includeHeaders": ("include_headers", _flag),
    "includeControl": ("include_control", _flag),
    "includeAborted": ("include_aborted", _flag),
    "includeOpen": ("include_open", _flag),
    "includeInternal": ("include_internal", _flag),
    "includeBelowLogStart": ("include_below_log_start", _flag),
    "stopAtHighWatermark": ("stop_at_high_watermark", _one_of(AUTO, TRUE, FALSE)),
    "onCorrupt": ("on_corrupt", _one_of(FAIL, SKIP)),
    "duplicatePartitions": ("duplicate_partitions", _one_of(FAIL, LONGEST, ALL)),
    "minPartitions": ("min_partitions", _positive),
    "maxPartitionBytes": ("max_partition_bytes", _size),
    "maxOffsetsPerTrigger": ("max_offsets_per_trigger", _positive),
    "failOnDataLoss": ("fail_on_data_loss", _flag),
    "arrowBatchRows": ("arrow_batch_rows", _positive),
    "arrowBatchBytes": ("arrow_batch_bytes", _size),
    "reportColumn": ("report_column", _text),
    "reportPath": ("report_path", _text),
}
_OPTIONS = {name.lower(): entry for name, entry in _TABLE.items()}
_NAMES = {name.lower(): name for name in _TABLE}
_ALIASES = {"isolation.level": "kafka.isolation.level", "isolationlevel": "kafka.isolation.level", "location": "path"}
_NO_PATH_IN_TABLE = (
    'there is no path: use .load("DIR") or .option("paths", "DIR1,DIR2"); if this is a table of CREATE TABLE, use CREATE '
    "TEMPORARY VIEW: Spark does not keep a table's options for a source in Python"
)
_NO_PUSHDOWN = (
    "the option pushdown was removed, because Spark keeps the filters of one query for later uses of the DataFrame, where rows "
    "are then missing; choose by subscribe, assign, startingOffsets, startingTimestamp and similar options"
)
_KAFKA = "kafka."
_SECURITY_PREFIXES = tuple(_KAFKA + prefix for prefix in SECURITY_PREFIXES)
# Spark passes these reserved properties of a table of CREATE TABLE, and each option again with the prefix "option.".
_TABLE_PROPERTIES = {"owner", "provider", "comment", "external", "is_managed_location", "collation", "table_type"}
