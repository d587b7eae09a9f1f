"""Fetched records for Arrow, by its C data interface: no copy, no dependency (https://arrow.apache.org/docs/format/CDataInterface).

    object         method               what takes it
    -------------  -------------------  -------------------------------------------------------------------------
    ArrowBatch     __arrow_c_array__    pyarrow.record_batch(batch), polars, DuckDB, ...
    ArrowBatch,    __arrow_c_stream__   pyarrow.table(batches), pyarrow.RecordBatchReader.from_stream(batches)
    ArrowBatches

An exported array is a C structure with pointers into the buffers; `_kept` holds the buffers and structures by a number, which
is the structure's private data, until the taker calls `release`. The columns are those of kcli.client.consumer.arrow_records.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterable, Sequence
from ctypes import POINTER, Structure, c_char_p, c_int, c_int64, c_void_p
from typing import Any, overload

from kcli.client.consumer.arrow_records import ArrowColumns, BinaryColumn

NULLABLE = 2  # ARROW_FLAG_NULLABLE
ENOMEM, NO_ERROR = 12, 0


class _Schema(Structure):
    pass


class _Array(Structure):
    pass


class _Stream(Structure):
    pass


_ReleaseSchema = ctypes.CFUNCTYPE(None, POINTER(_Schema))
_ReleaseArray = ctypes.CFUNCTYPE(None, POINTER(_Array))
_ReleaseStream = ctypes.CFUNCTYPE(None, POINTER(_Stream))
_GetSchema = ctypes.CFUNCTYPE(c_int, POINTER(_Stream), POINTER(_Schema))
_GetNext = ctypes.CFUNCTYPE(c_int, POINTER(_Stream), POINTER(_Array))
_GetLastError = ctypes.CFUNCTYPE(c_void_p, POINTER(_Stream))

_Schema._fields_ = [
    ("format", c_char_p),
    ("name", c_char_p),
    ("metadata", c_char_p),
    ("flags", c_int64),
    ("n_children", c_int64),
    ("children", POINTER(POINTER(_Schema))),
    ("dictionary", POINTER(_Schema)),
    ("release", c_void_p),
    ("private_data", c_void_p),
]
_Array._fields_ = [
    ("length", c_int64),
    ("null_count", c_int64),
    ("offset", c_int64),
    ("n_buffers", c_int64),
    ("n_children", c_int64),
    ("buffers", POINTER(c_void_p)),
    ("children", POINTER(POINTER(_Array))),
    ("dictionary", POINTER(_Array)),
    ("release", c_void_p),
    ("private_data", c_void_p),
]
_Stream._fields_ = [
    ("get_schema", c_void_p),
    ("get_next", c_void_p),
    ("get_last_error", c_void_p),
    ("release", c_void_p),
    ("private_data", c_void_p),
]

_kept: dict[int, object] = {}
_next_number = 1


def _keep(what: object) -> int:
    """Hold an object until its number is released."""
    global _next_number
    number, _next_number = _next_number, _next_number + 1
    _kept[number] = what
    return number


def _released(pointer: Any) -> None:
    """Release a structure, its dictionary and those of its children that the taker has not moved out."""
    one = pointer.contents
    inner = [one.children[index] for index in range(one.n_children)]
    if one.dictionary:
        inner.append(one.dictionary)
    for child in inner:
        if child.contents.release:
            _released(child)
    _kept.pop(one.private_data, None)
    one.release = None


def _stream_released(pointer: Any) -> None:
    _kept.pop(pointer.contents.private_data, None)
    pointer.contents.release = None


# They must live as long as any structure that points to them: as long as the process.
_release_schema = _ReleaseSchema(_released)
_release_array = _ReleaseArray(_released)
_release_stream = _ReleaseStream(_stream_released)


def _address(function: Any) -> int:
    return ctypes.cast(function, c_void_p).value or 0


class _Field:
    """The type of a column: Arrow's format string, name, children and dictionary."""

    def __init__(
        self, name: str, form: bytes, children: Sequence[_Field] = (), dictionary: _Field | None = None, nullable: bool = False
    ) -> None:
        self.name = name.encode()
        self.form = form
        self.children = children
        self.dictionary = dictionary
        self.nullable = nullable

    def export(self, out: _Schema) -> None:
        """Fill a C structure."""
        children = [_Schema() for _ in self.children]
        for child, into in zip(self.children, children, strict=True):
            child.export(into)
        pointers = (POINTER(_Schema) * len(children))(*(ctypes.pointer(child) for child in children))
        dictionary, out.dictionary = None, None  # the memory may have any content
        if self.dictionary is not None:
            dictionary = _Schema()
            self.dictionary.export(dictionary)
            out.dictionary = ctypes.pointer(dictionary)
        out.format, out.name, out.metadata = self.form, self.name, None
        out.flags = NULLABLE if self.nullable else 0
        out.n_children = len(children)
        out.children = ctypes.cast(pointers, POINTER(POINTER(_Schema))) if children else None
        out.release = _address(_release_schema)
        out.private_data = _keep((self.form, self.name, children, pointers, dictionary))


_HEADER = _Field("entries", b"+s", (_Field("key", b"u"), _Field("value", b"z", nullable=True)))
RECORDS = _Field(
    "",
    b"+s",
    (
        _Field("topic", b"c", dictionary=_Field("", b"u")),
        _Field("partition", b"i"),
        _Field("offset", b"l"),
        _Field("timestamp", b"tsm:UTC"),
        _Field("timestamp_type", b"c"),
        _Field("key", b"z", nullable=True),
        _Field("value", b"z", nullable=True),
        _Field("headers", b"+l", (_HEADER,)),
        _Field("leader_epoch", b"i"),
    ),
)


class _Node:
    """An array: its length, buffers (None: no validity bits, there are no nulls), children and dictionary."""

    def __init__(
        self,
        length: int,
        buffers: Sequence[Any],
        children: Sequence[_Node] = (),
        dictionary: _Node | None = None,
        nulls: int = 0,
    ) -> None:
        self.length = length
        self.buffers = buffers
        self.children = children
        self.dictionary = dictionary
        self.nulls = nulls

    def export(self, out: _Array) -> None:
        """Fill a C structure."""
        held = [None if one is None else ctypes.c_char.from_buffer(one) for one in self.buffers]
        buffers = (c_void_p * len(held))(*(None if one is None else ctypes.addressof(one) for one in held))
        children = [_Array() for _ in self.children]
        for child, into in zip(self.children, children, strict=True):
            child.export(into)
        pointers = (POINTER(_Array) * len(children))(*(ctypes.pointer(child) for child in children))
        dictionary, out.dictionary = None, None  # the memory may have any content
        if self.dictionary is not None:
            dictionary = _Array()
            self.dictionary.export(dictionary)
            out.dictionary = ctypes.pointer(dictionary)
        out.length, out.null_count, out.offset = self.length, self.nulls, 0
        out.n_buffers, out.n_children = len(held), len(children)
        out.buffers = ctypes.cast(buffers, POINTER(c_void_p))
        out.children = ctypes.cast(pointers, POINTER(POINTER(_Array))) if children else None
        out.release = _address(_release_array)
        out.private_data = _keep((held, buffers, children, pointers, dictionary))


def _binary(column: BinaryColumn, rows: int) -> _Node:
    validity = memoryview(column.validity) if column.nulls else None
    return _Node(rows, (validity, memoryview(column.offsets), memoryview(column.data)), nulls=column.nulls)


def _node_of(columns: ArrowColumns) -> _Node:
    rows = columns.rows
    name = bytearray(columns.topic.encode()) or bytearray(1)
    ends = memoryview(bytearray(8)).cast("i")
    ends[1] = len(columns.topic.encode())
    dictionary = _Node(1, (None, ends, memoryview(name)))
    headers = columns.header_lists[rows]
    entries = _Node(headers, (None,), (_binary(columns.header_keys, headers), _binary(columns.header_values, headers)))
    return _Node(
        rows,
        (None,),
        (
            _Node(rows, (None, columns.topic_index), dictionary=dictionary),
            _Node(rows, (None, columns.partitions)),
            _Node(rows, (None, columns.offsets)),
            _Node(rows, (None, columns.timestamps)),
            _Node(rows, (None, columns.timestamp_types)),
            _binary(columns.keys, rows),
            _binary(columns.values, rows),
            _Node(rows, (None, columns.header_lists), (entries,)),
            _Node(rows, (None, columns.leader_epochs)),
        ),
    )


_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype, _new_capsule.argtypes = ctypes.py_object, [c_void_p, c_char_p, c_void_p]
# Each capsule with its structure and the function that releases it. A destructor in Python would run while an exception of the
# taker is on its way, and lose it; so the next export looks which capsules nothing else refers to any more.
_capsules: list[tuple[object, Any, Callable[[Any], None]]] = []
_OWN_REFERENCES = 3  # of the list's tuple, the variable and the argument


def _capsule(one: Structure, name: bytes, release: Callable[[Any], None]) -> object:
    """Return a capsule of a structure, which lives as long as the capsule."""
    left = []
    while _capsules:
        capsule, structure, function = entry = _capsules.pop()
        if sys.getrefcount(capsule) > _OWN_REFERENCES:
            left.append(entry)
        elif structure.release:
            function(ctypes.pointer(structure))
    _capsules.extend(left)
    made: object = _new_capsule(ctypes.addressof(one), name, None)
    _capsules.append((made, one, release))
    return made


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
        schema = _Schema()
        RECORDS.export(schema)
        return _capsule(schema, b"arrow_schema", _released)

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        array = _Array()
        _node_of(self.columns).export(array)
        return self.__arrow_c_schema__(), _capsule(array, b"arrow_array", _released)

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
        schema = _Schema()
        RECORDS.export(schema)
        return _capsule(schema, b"arrow_schema", _released)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        stream = _Stream()
        stream.get_schema, stream.get_next = _address(_get_schema), _address(_get_next)
        stream.get_last_error, stream.release = _address(_get_last_error), _address(_release_stream)
        stream.private_data = _keep(list(self))
        return _capsule(stream, b"arrow_array_stream", _stream_released)


def _stream_schema(stream: Any, out: Any) -> int:
    RECORDS.export(out.contents)
    return NO_ERROR


def _stream_next(stream: Any, out: Any) -> int:
    left: Any = _kept.get(stream.contents.private_data)
    if left:
        _node_of(left.pop(0).columns).export(out.contents)
    else:
        out.contents.release = None
    return NO_ERROR


def _stream_error(stream: Any) -> int:
    return 0


_get_schema = _GetSchema(_stream_schema)
_get_next = _GetNext(_stream_next)
_get_last_error = _GetLastError(_stream_error)
