"""Fetched records for Arrow, by its C data interface: no copy, no dependency (https://arrow.apache.org/docs/format/CDataInterface).

    object         method               what takes it
    -------------  -------------------  -------------------------------------------------------------------------
    ArrowBatch     __arrow_c_array__    pyarrow.record_batch(batch), polars, DuckDB, ...
    ArrowBatch,    __arrow_c_stream__   pyarrow.table(batches), pyarrow.RecordBatchReader.from_stream(batches)
    ArrowBatches

The columns are those of kcli.client.consumer.arrow_records. A schema or array is a tree of C structures. Those of one export
are in one block of memory, whose layout never changes: a copy of a template, into which addresses and lengths are written.

    word of a structure (8 bytes)   schema                        array
    ------------------------------  ----------------------------  --------------------------------------------------------
    0, 1, 2                         format, name, metadata        length, null count, offset
    3                               flags                         number of buffers
    4                               number of children            number of children
    5 (array only)                                                address of the buffers' addresses
    then                            children, dictionary: addresses
    then                            release: the function that the taker calls; 0 after it, and in a structure that was moved
    last                            private data: the number of the export * 32 + the number of the structure

A taker moves structures out of the block by copying them, children too. The block and the buffers are held in `_exports` until
the last structure is released, wherever it is then.
"""

from __future__ import annotations

import ctypes
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from ctypes import c_char, c_char_p, c_int, c_int64, c_void_p
from itertools import count
from typing import Any, NamedTuple, overload

from kcli.client.consumer.arrow_records import ArrowColumns, BinaryColumn

NULLABLE = 2  # ARROW_FLAG_NULLABLE
NO_ERROR = 0
WORD_BYTES = 8
_NUMBERS = 32  # of structures in an export, at most

_Release = ctypes.CFUNCTYPE(None, c_void_p)
_GetSchema = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p)
_GetNext = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p)
_GetLastError = ctypes.CFUNCTYPE(c_void_p, c_void_p)


class _Field(NamedTuple):
    """The type of a column: Arrow's format string, name, number of buffers, children and dictionary."""

    name: bytes
    form: bytes
    buffers: int = 2
    children: tuple[_Field, ...] = ()
    dictionary: _Field | None = None
    is_nullable: bool = False


_HEADER = _Field(b"entries", b"+s", 1, (_Field(b"key", b"u", 3), _Field(b"value", b"z", 3, is_nullable=True)))
RECORDS = _Field(
    b"",
    b"+s",
    1,
    (
        _Field(b"topic", b"c", dictionary=_Field(b"", b"u", 3)),
        _Field(b"partition", b"i"),
        _Field(b"offset", b"l"),
        _Field(b"timestamp", b"tsm:UTC"),
        _Field(b"timestamp_type", b"c"),
        _Field(b"key", b"z", 3, is_nullable=True),
        _Field(b"value", b"z", 3, is_nullable=True),
        _Field(b"headers", b"+l", 2, (_HEADER,)),
        _Field(b"leader_epoch", b"i"),
    ),
)


class _Export(NamedTuple):
    """What is held until all structures of an export are released."""

    layout: _Layout
    words: array[int]
    held: list[Any]
    alive: set[int]  # the structures that are not released


_exports: dict[int, _Export] = {}
_numbers = count(1)


class _Layout:
    """The structures of one kind for all fields, the root first, in one block of words."""

    def __init__(self, root: _Field, children_word: int) -> None:
        self.release_word = children_word + 2
        self.size = children_word + 4
        self.starts: list[int] = []  # of each structure, in words
        self.buffer_tables: list[int] = []  # of each structure, if it has one
        self._words: list[int] = []
        self._relocated: list[int] = []  # words that are addresses in the block
        self._trees: list[range] = []  # of each structure, the numbers of it and of what is below it
        self._texts: list[c_char_p] = []
        self._add(root, children_word)

    def _add(self, field: _Field, children_word: int) -> int:
        """Add a field and what is below it; return the number of its structure."""
        words, number, start = self._words, len(self.starts), len(self._words)
        self.starts.append(start)
        self._trees.append(range(0))
        words += [0] * self.size
        words[start + 4] = len(field.children)
        if children_word == ARRAY_CHILDREN:
            words[start + 3] = field.buffers
            self._point(start + 5, len(words))
            self.buffer_tables.append(len(words))
            words += [0] * field.buffers
        else:
            words[start], words[start + 1] = self._text(field.form), self._text(field.name)
            words[start + 3] = NULLABLE if field.is_nullable else 0
        table = len(words)
        words += [0] * len(field.children)
        for index, child in enumerate(field.children):
            self._point(table + index, self.starts[self._add(child, children_word)])
        if field.children:
            self._point(start + children_word, table)
        if field.dictionary is not None:
            self._point(start + children_word + 1, self.starts[self._add(field.dictionary, children_word)])
        self._trees[number] = range(number, len(self.starts))
        return number

    def _text(self, text: bytes) -> int:
        """Return the address of a text, which lives as long as the process."""
        self._texts.append(c_char_p(text))
        return ctypes.cast(self._texts[-1], c_void_p).value or 0

    def _point(self, word: int, target: int) -> None:
        self._words[word] = target * WORD_BYTES
        self._relocated.append(word)

    def finish(self, release: int) -> None:
        """Have all structures released by the function at an address."""
        for start in self.starts:
            self._words[start + self.release_word] = release
        self._template = array("q", self._words)

    def begin(self) -> tuple[array[int], int]:
        """Return a new block and the number of its export; nothing holds it yet."""
        words = self._template[:]
        address, number = words.buffer_info()[0], next(_numbers)
        for word in self._relocated:
            words[word] += address
        private = number * _NUMBERS
        for index, start in enumerate(self.starts):
            words[start + self.size - 1] = private + index
        return words, number

    def hold(self, words: array[int], number: int, held: list[Any]) -> None:
        """Hold a block and what it points to until all its structures are released."""
        _exports[number] = _Export(self, words, held, set(range(len(self.starts))))

    def move(self, words: array[int], target: int) -> None:
        """Move the root to an address."""
        ctypes.memmove(target, words.buffer_info()[0], self.size * WORD_BYTES)
        words[self.release_word] = 0

    def release(self, private: int) -> None:
        """Release a structure, its dictionary and those of its children that the taker has not moved out."""
        number, first = divmod(private, _NUMBERS)
        export = _exports.get(number)
        if export is None:
            return
        moved_until = first
        for index in self._trees[first]:
            at = self.starts[index] + self.release_word
            if index < moved_until:
                continue
            if index != first and not export.words[at]:
                moved_until = self._trees[index].stop
                continue
            export.words[at] = 0
            export.alive.discard(index)
        if not export.alive:
            _exports.pop(number, None)


SCHEMA_CHILDREN, ARRAY_CHILDREN = 5, 6
_SCHEMA, _ARRAY = _Layout(RECORDS, SCHEMA_CHILDREN), _Layout(RECORDS, ARRAY_CHILDREN)


def _word_at(address: int, index: int) -> c_int64:
    return c_int64.from_address(address + index * WORD_BYTES)


def _release(layout: _Layout, address: int) -> None:
    """Release the structure at an address, which may be one that was moved there."""
    layout.release(_word_at(address, layout.size - 1).value)
    _word_at(address, layout.release_word).value = 0


def _address(function: Any) -> int:
    return ctypes.cast(function, c_void_p).value or 0


# They must live as long as any structure that points to them: as long as the process.
_release_schema = _Release(lambda address: _release(_SCHEMA, address))
_release_array = _Release(lambda address: _release(_ARRAY, address))
_SCHEMA.finish(_address(_release_schema))
_ARRAY.finish(_address(_release_array))


class _Array(NamedTuple):
    """What an array has of its own: its length, its nulls and its buffers, None for validity bits that are not needed."""

    length: int
    buffers: tuple[Any, ...]
    nulls: int = 0


def _binary(column: BinaryColumn, rows: int) -> _Array:
    validity = memoryview(column.validity) if column.nulls else None
    return _Array(rows, (validity, memoryview(column.offsets), memoryview(column.data)), column.nulls)


def _arrays_of(columns: ArrowColumns) -> Iterator[_Array]:
    """Yield the arrays of a batch in the order of the structures: each before its children, then its dictionary."""
    rows, name = columns.rows, columns.topic.encode()
    ends = memoryview(bytearray(8)).cast("i")
    ends[1] = len(name)
    headers = columns.header_lists[rows]
    yield _Array(rows, (None,))
    yield _Array(rows, (None, columns.topic_index))
    yield _Array(1, (None, ends, memoryview(bytearray(name or b"\0"))))
    yield _Array(rows, (None, columns.partitions))
    yield _Array(rows, (None, columns.offsets))
    yield _Array(rows, (None, columns.timestamps))
    yield _Array(rows, (None, columns.timestamp_types))
    yield _binary(columns.keys, rows)
    yield _binary(columns.values, rows)
    yield _Array(rows, (None, columns.header_lists))
    yield _Array(headers, (None,))
    yield _binary(columns.header_keys, headers)
    yield _binary(columns.header_values, headers)
    yield _Array(rows, (None, columns.leader_epochs))


def _export_schema() -> array[int]:
    words, number = _SCHEMA.begin()
    _SCHEMA.hold(words, number, [])
    return words


def _export_array(columns: ArrowColumns) -> array[int]:
    words, number = _ARRAY.begin()
    held: list[Any] = []
    for one, start, table in zip(_arrays_of(columns), _ARRAY.starts, _ARRAY.buffer_tables, strict=True):
        words[start], words[start + 1] = one.length, one.nulls
        for index, buffer in enumerate(one.buffers, table):
            if buffer is not None:
                pinned = c_char.from_buffer(buffer)
                held.append(pinned)
                words[index] = ctypes.addressof(pinned)
    _ARRAY.hold(words, number, held)
    return words


# ------------------------------------------------------------------------------------------------------------------ streams


class _Stream(ctypes.Structure):
    _fields_ = [
        ("get_schema", c_void_p),
        ("get_next", c_void_p),
        ("get_last_error", c_void_p),
        ("release", c_void_p),
        ("private_data", c_void_p),
    ]


_streams: dict[int, list[ArrowBatch]] = {}  # the batches that were not taken yet


def _stream_schema(stream: int, target: int) -> int:
    _SCHEMA.move(_export_schema(), target)
    return NO_ERROR


def _stream_next(stream: int, target: int) -> int:
    left = _streams.get(_Stream.from_address(stream).private_data)
    if left:
        _ARRAY.move(_export_array(left.pop(0).columns), target)
    else:
        _word_at(target, _ARRAY.release_word).value = 0  # the end
    return NO_ERROR


def _stream_released(stream: int) -> None:
    found = _Stream.from_address(stream)
    _streams.pop(found.private_data, None)
    found.release = None


_get_schema = _GetSchema(_stream_schema)
_get_next = _GetNext(_stream_next)
_get_last_error = _GetLastError(lambda stream: 0)
_release_stream = _Release(_stream_released)


# ----------------------------------------------------------------------------------------------------------------- capsules

_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype, _new_capsule.argtypes = ctypes.py_object, [c_void_p, c_char_p, c_void_p]
_Held = tuple[object, object, int, int]
# Each capsule with its structure, where that is, and the word that has its release function. A destructor in Python would run
# while an exception of the taker is on its way, and lose it; so the next export looks which capsules nothing else refers to.
_capsules: list[_Held] = []


def _references(entry: _Held) -> int:
    """Return the references to the capsule of an entry, with those that the call itself makes."""
    return sys.getrefcount(entry[0])


# Of a capsule that only its entry refers to; measured, since they differ between versions of Python (3.14 borrows some).
_OWN_REFERENCES = _references((object(), None, 0, 0))


def _capsule(structure: object, address: int, name: bytes, release_word: int) -> object:
    """Return a capsule of a structure, which lives as long as the capsule."""
    left = []
    while _capsules:
        entry = _capsules.pop()
        _, _, where, word = entry
        if _references(entry) > _OWN_REFERENCES:
            left.append(entry)
        elif release := _word_at(where, word).value:
            _Release(release)(where)
    _capsules.extend(left)
    made: object = _new_capsule(address, name, None)
    _capsules.append((made, structure, address, release_word))
    return made


def _schema_capsule() -> object:
    words = _export_schema()
    return _capsule(words, words.buffer_info()[0], b"arrow_schema", _SCHEMA.release_word)


class ArrowBatch:
    """The records of one partition, as an Arrow struct array: a record batch."""

    __slots__ = ("columns",)

    def __init__(self, columns: ArrowColumns) -> None:
        self.columns = columns

    def __len__(self) -> int:
        return self.columns.rows

    @property
    def topic(self) -> str:
        """The topic of the records."""
        return self.columns.topic

    @property
    def partition(self) -> int:
        """The partition of the records."""
        return self.columns.partition

    def __arrow_c_schema__(self) -> object:
        return _schema_capsule()

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        words = _export_array(self.columns)
        capsule = _capsule(words, words.buffer_info()[0], b"arrow_array", _ARRAY.release_word)
        return _schema_capsule(), capsule

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return ArrowBatches((self,)).__arrow_c_stream__(requested_schema)


class ArrowBatches(Sequence[ArrowBatch]):
    """What one poll_arrow returned: a sequence of batches, and a stream of them for Arrow.

    It is not a tuple or list, which pyarrow.table takes for columns.
    """

    __slots__ = ("_batches",)

    def __init__(self, batches: Iterable[ArrowBatch]) -> None:
        self._batches = tuple(batches)

    def __len__(self) -> int:
        return len(self._batches)

    @overload
    def __getitem__(self, index: int) -> ArrowBatch: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[ArrowBatch, ...]: ...

    def __getitem__(self, index: int | slice) -> ArrowBatch | tuple[ArrowBatch, ...]:
        return self._batches[index]

    @property
    def rows(self) -> int:
        """The records in all batches."""
        return sum(len(batch) for batch in self._batches)

    def __arrow_c_schema__(self) -> object:
        return _schema_capsule()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        stream = _Stream(_address(_get_schema), _address(_get_next), _address(_get_last_error), _address(_release_stream))
        stream.private_data = next(_numbers)
        _streams[stream.private_data] = list(self)
        return _capsule(stream, ctypes.addressof(stream), b"arrow_array_stream", 3)
