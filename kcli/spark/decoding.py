"""Keys and values of records decoded by Spark, and the records that do not decode.

    decoding  the column becomes                                 cannot be decoded
    --------  -------------------------------------------------  ---------------------------------------------------------
    utf8      string                                             bytes that are not UTF-8
    json      a struct of the schema (kcli.spark.json_schema);   bytes that are not UTF-8, a text that is not one JSON value
              null for the JSON value null. With `flatten` its   (RFC 8259; at most MAX_DEPTH levels), a value that is not
              fields become columns instead                      an object, and a field that does not fit its type

A null key or value is decoded as null. If a key or value cannot be decoded, the whole of it is null, never a part: the record
is written to the side table, the directory OUT.undecoded, with its bytes and the reason. Spark's from_json alone would lose
data silently:

    from_json                                              here
    -----------------------------------------------------  ---------------------------------------------------------------
    ignores text after the first JSON value                the value is put into an object whose last field must be found
    replaces bytes that are not UTF-8                      checked before
    makes numbers beyond a float or double infinite        checked after
    returns the fields that fit                            all of them are null

A field of type string accepts any JSON value, as its text; if an object has a key twice, the last one counts.
"""

from __future__ import annotations

import functools
import operator
from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    MapType,
    StringType,
    StructType,
)

from kcli.spark.json_misfit import MAX_DEPTH, json_reason, utf8_reason
from kcli.spark.json_schema import JSON_OPTIONS, flattened

JSON, UTF8 = "json", "utf8"
# The side table has these columns of the raw record, then the column that was not decoded and the reason.
UNDECODED_COLUMNS = ("topic", "partition", "offset", "timestamp", "key", "value")
# Names in the object around a value; no value is expected to have them.
_INSIDE, _END, _CORRUPT = "kcli value", "kcli end", JSON_OPTIONS["columnNameOfCorruptRecord"]
_PARSED, _DECODED, _FAILED = "_kcli_{}_parsed", "_kcli_{}_decoded", "_kcli_{}_failed"


class Decoding(NamedTuple):
    """How one column, key or value, is decoded; `schema` has the names in the JSON, `written` those in the files."""

    column: str
    how: str
    schema: StructType | None = None
    written: StructType | None = None
    flatten: bool = False

    @property
    def failed(self) -> str:
        """The name of a column that is true for records whose key or value was not decoded."""
        return _FAILED.format(self.column)

    def with_decoded(self, frame: DataFrame) -> DataFrame:
        """Return the frame with two more columns: the decoded value, and `failed`."""
        if self.how == UTF8:
            text = F.col(self.column).cast(StringType())
            is_bad = F.col(self.column).isNotNull() & ~F.is_valid_utf8(text)
            return self._judged(frame, is_bad, text)
        assert self.schema is not None and self.written is not None
        around = StructType().add(_INSIDE, self.schema).add(_END, IntegerType()).add(_CORRUPT, StringType())
        options = {**JSON_OPTIONS, "mode": "PERMISSIVE", "maxNestingDepth": str(MAX_DEPTH + 1)}
        text = F.col(self.column).cast(StringType())
        wrapped = F.concat(F.lit(f'{{"{_INSIDE}":'), text, F.lit(f',"{_END}":1}}'))
        parsed_name = _PARSED.format(self.column)
        frame = frame.withColumn(parsed_name, F.from_json(F.when(F.is_valid_utf8(text), wrapped), around, options))
        parsed = F.col(parsed_name)
        value = parsed.getField(_INSIDE)
        is_bad = parsed.isNull() | parsed.getField(_CORRUPT).isNotNull() | parsed.getField(_END).isNull()
        if self.written != self.schema:
            value = value.cast(self.written)  # by position
        beyond = _has_infinity(value, self.written)
        if beyond is not None:
            is_bad = is_bad | F.coalesce(beyond, F.lit(False))
        return self._judged(frame, F.col(self.column).isNotNull() & is_bad, value).drop(parsed_name)

    def _judged(self, frame: DataFrame, is_bad: Column, decoded: Column) -> DataFrame:
        frame = frame.withColumn(self.failed, is_bad)
        return frame.withColumn(_DECODED.format(self.column), F.when(~F.col(self.failed), decoded))

    def replaced(self, frame: DataFrame) -> DataFrame:
        """Replace the bytes in a frame of with_decoded by the decoded column, or by its fields (`flatten`)."""
        decoded = _DECODED.format(self.column)
        frame = frame.withColumn(self.column, F.col(decoded)).drop(decoded)
        if not self.flatten:
            return frame
        assert self.written is not None
        others = [name for name in frame.columns if name != self.column]
        fields = flattened(self.column, self.written, others)
        at = frame.columns.index(self.column)
        return frame.select(*others[:at], *fields, *others[at:])

    def reason(self) -> Column:
        """Return a column with the reason why this one was not decoded, found by a Python worker; null if it was decoded."""
        schema = self.schema

        def reason_of(data: bytes | None) -> str | None:
            if data is None:
                return None
            return utf8_reason(bytes(data)) if schema is None else json_reason(bytes(data), schema)

        return F.udf(reason_of, StringType(), useArrow=False)(F.when(F.col(self.failed), F.col(self.column)))


def _has_infinity(value: Column, kind: DataType) -> Column | None:
    """Return a column that is true if a float or double in a value is infinite; None if the type has no such number."""
    if isinstance(kind, FloatType | DoubleType):
        return F.abs(value) == F.lit(float("inf"))
    if isinstance(kind, ArrayType):
        if _has_infinity(value, kind.elementType) is None:
            return None
        return F.exists(value, lambda item: _true_or_false(_has_infinity(item, kind.elementType)))
    if isinstance(kind, MapType):
        return _has_infinity(F.map_values(value), ArrayType(kind.valueType))
    if isinstance(kind, StructType):
        found = [_has_infinity(value.getField(field.name), field.dataType) for field in kind.fields]
        checks = [_true_or_false(check) for check in found if check is not None]
        return functools.reduce(operator.or_, checks) if checks else None
    return None


def _true_or_false(check: Column | None) -> Column:
    return F.coalesce(check, F.lit(False)) if check is not None else F.lit(False)


def with_all_decoded(frame: DataFrame, decodings: tuple[Decoding, ...]) -> tuple[DataFrame, Column]:
    """Return the frame of all `with_decoded`, and a column that is true if any key or value of a row was not decoded."""
    any_failed = F.lit(False)
    for decoding in decodings:
        frame = decoding.with_decoded(frame)
        any_failed = any_failed | F.col(decoding.failed)
    return frame, any_failed


def undecoded_rows(frame: DataFrame, decodings: tuple[Decoding, ...]) -> DataFrame:
    """Return a row for each key and value of raw records that was not decoded: the record, `column` and `reason`."""
    frame, any_failed = with_all_decoded(frame, decodings)
    frame = frame.where(any_failed)
    found = [
        F.when(F.col(decoding.failed), F.struct(F.lit(decoding.column).alias("column"), decoding.reason().alias("reason")))
        for decoding in decodings
    ]
    frame = frame.select(*UNDECODED_COLUMNS, F.explode(F.array_compact(F.array(*found))).alias("found"))
    return frame.select(*UNDECODED_COLUMNS, "found.column", "found.reason")
