"""Passes over columns of batches, as kcli.format.batch_scan fills them: as long as all is usual, and never an object a batch.

    pass                 goes on while
    -------------------  ---------------------------------------------------------------------------------------------
    next_notable         offsets, leader epoch and some producer's sequence are continued, and no offset is missing
    match_offset_index   the entries of a `.index` name a batch's position and last offset
    match_time_index     the entries of a `.timeindex` tell a batch's largest timestamp

What is not usual need not be wrong: the caller looks at it. This one source runs two ways, as kcli.format.record_scan does;
its C types stand in batch_passes.pxd.
"""

from array import array

from kcli.format.batch_scan import BatchColumns

# The slots of the state of `next_notable`: what the next batch must have to be usual, then what was passed over.
NEXT_OFFSET = 0
LEADER_EPOCH = 1
STOP_OFFSET = 2  # a batch that reaches this offset is notable
RECORDS = 3
LATEST_RUN = 4
STATE_SLOTS = 5


class ProducerRuns:
    """Columns of up to `capacity` runs: batches of one producer, epoch and attributes, each next in its sequence.

    `used` runs are in use, in the order in which they began; a producer id of -1 stands for batches of no producer. Of the
    last batch there are `batch_offset`, `last_offset`, `last_sequence` and `max_timestamp`; `attributes` lack the codec.
    """

    __slots__ = (
        "attributes",
        "batch_offset",
        "batches",
        "capacity",
        "first_offset",
        "first_position",
        "first_sequence",
        "last_offset",
        "last_sequence",
        "max_timestamp",
        "producer_epoch",
        "producer_id",
        "records",
        "used",
    )

    def __init__(self, capacity: int) -> None:
        zeros = bytes(8 * capacity)
        self.capacity = capacity
        self.used = 0
        self.producer_id = array("q", zeros)
        self.producer_epoch = array("q", zeros)
        self.attributes = array("q", zeros)
        self.first_position = array("q", zeros)
        self.first_offset = array("q", zeros)
        self.first_sequence = array("q", zeros)
        self.batch_offset = array("q", zeros)
        self.last_offset = array("q", zeros)
        self.last_sequence = array("q", zeros)
        self.max_timestamp = array("q", zeros)
        self.records = array("q", zeros)
        self.batches = array("q", zeros)


def next_notable(batches: BatchColumns, index: int, count: int, state: array, runs: ProducerRuns) -> int:  # type: ignore[type-arg]
    """Pass over the rows [index, count) that are usual -> the first that is not, or count.

    Usual: SOUND, every offset taken, next in offset, of the same leader epoch, below STOP_OFFSET, and next in the sequence of
    one of the `runs`, with its producer, epoch and attributes. `state` holds what is expected and is moved on, as the runs
    are; RECORDS grows.
    """
    base_offsets = batches.base_offset
    last_offsets = batches.last_offset
    leader_epochs = batches.leader_epoch
    attributes = batches.attributes
    producer_ids = batches.producer_id
    producer_epochs = batches.producer_epoch
    base_sequences = batches.base_sequence
    max_timestamps = batches.max_timestamp
    record_counts = batches.record_count
    faults = batches.fault
    run_ids = runs.producer_id
    run_epochs = runs.producer_epoch
    run_attributes = runs.attributes
    run_batch_offsets = runs.batch_offset
    run_last_offsets = runs.last_offset
    run_last_sequences = runs.last_sequence
    run_timestamps = runs.max_timestamp
    run_records = runs.records
    run_batches = runs.batches
    used = runs.used
    next_offset = state[0]
    leader_epoch = state[1]
    stop_offset = state[2]
    run = state[4]
    passed = 0
    while index < count:
        last_offset = last_offsets[index]
        taken = last_offset - next_offset + 1
        if (
            base_offsets[index] != next_offset
            or faults[index] != 0
            or record_counts[index] != taken
            or leader_epochs[index] != leader_epoch
            or last_offset >= stop_offset
        ):
            break
        producer_id = producer_ids[index]
        if run >= used or run_ids[run] != producer_id:
            run = 0
            while run < used and run_ids[run] != producer_id:
                run += 1
            if run == used:
                break
        sequence = base_sequences[index]
        if producer_id >= 0:
            expected = run_last_sequences[run] + 1
            if expected > 2147483647:
                expected = 0
            last_sequence = sequence + taken - 1
            if last_sequence > 2147483647:
                last_sequence -= 2147483648
        else:
            expected = -1
            last_sequence = -1
        if sequence != expected or run_epochs[run] != producer_epochs[index] or run_attributes[run] != attributes[index] & -8:
            break
        run_last_sequences[run] = last_sequence
        run_batch_offsets[run] = next_offset
        run_last_offsets[run] = last_offset
        run_timestamps[run] = max_timestamps[index]
        run_records[run] += taken
        run_batches[run] += 1
        next_offset = last_offset + 1
        passed += taken
        index += 1
    state[0] = next_offset
    state[3] += passed
    state[4] = run
    return index


def match_offset_index(
    batches: BatchColumns,
    index: int,
    count: int,
    relative_offsets: array,  # type: ignore[type-arg]
    positions: array,  # type: ignore[type-arg]
    slot: int,
    base_offset: int,
    scratch: array,  # type: ignore[type-arg]
) -> int:
    """Pass over the entries of a `.index`, from `slot` on, that name a batch's position and last offset -> the next slot.

    On return scratch[0] is the row reached: `count` where the next entry points behind the rows [index, count), else the
    first row at or behind the place that the next entry points at, which it does not fit.
    """
    row_positions = batches.position
    last_offsets = batches.last_offset
    slots = len(positions)
    while slot < slots:
        target = positions[slot]
        while index < count and row_positions[index] < target:
            index += 1
        if index == count or row_positions[index] != target or last_offsets[index] != base_offset + relative_offsets[slot]:
            break
        slot += 1
    scratch[0] = index
    return slot


def match_time_index(
    batches: BatchColumns,
    index: int,
    count: int,
    timestamps: array,  # type: ignore[type-arg]
    relative_offsets: array,  # type: ignore[type-arg]
    slot: int,
    base_offset: int,
    scratch: array,  # type: ignore[type-arg]
) -> int:
    """Pass over the entries of a `.timeindex`, from `slot` on, that tell a batch's largest timestamp -> the next slot.

    A fitting entry's offset lies in a batch whose maxTimestamp it states, and no batch before has a larger one. scratch[1]
    is the largest timestamp of the rows before `index`, on call and on return; scratch[0] as in match_offset_index.
    """
    base_offsets = batches.base_offset
    last_offsets = batches.last_offset
    max_timestamps = batches.max_timestamp
    slots = len(timestamps)
    largest = scratch[1]
    while slot < slots:
        target = base_offset + relative_offsets[slot]
        while index < count and last_offsets[index] < target:
            if max_timestamps[index] > largest:
                largest = max_timestamps[index]
            index += 1
        timestamp = timestamps[slot]
        if index == count or base_offsets[index] > target or max_timestamps[index] != timestamp or largest > timestamp:
            break
        slot += 1
    if slot == slots:
        while index < count:
            if max_timestamps[index] > largest:
                largest = max_timestamps[index]
            index += 1
    scratch[0] = index
    scratch[1] = largest
    return slot
