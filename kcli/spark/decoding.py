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
    ignores text after the first JSON value                the value is put into an object, which must have the two fields that
                                                           it was given; the second name is random (`mark`)
    reads numbers in fields of type string as doubles      such a value is parsed again with its numbers quoted (_exact)
    reads strings in fields of type decimal as numbers     the same: only a number fits
    reads "12:00" as a time of today, "2026-1-5T99" as a   ISO 8601 with year, month and day
      date
    replaces bytes that are not UTF-8                      checked before
    makes numbers beyond a float or double infinite        checked after
    returns the fields that fit                            all of them are null

A field of type string accepts any JSON value, as its text; if an object has a key twice, the last one counts.

Spark finds the records that cannot be decoded, without a reason. So a Python worker checks these, and only these:

    checked in this order             example of a reason
    --------------------------------  ------------------------------------------------------------------------------------
    the bytes are UTF-8               not UTF-8: byte 0 (0xff)
    it is not empty                   empty
    no byte order mark                begins with a byte order mark
    it is JSON by RFC 8259            not JSON: expecting value at character 3
    at most MAX_DEPTH levels          nested deeper than 64 levels
    each field fits its type          items[2].price is a string, not double
"""

from __future__ import annotations

import base64
import binascii
import functools
import json
import math
import operator
import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any, NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NumericType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from kcli.spark.json_schema import JSON_OPTIONS, MAX_DEPTH, flattened

JSON, UTF8 = "json", "utf8"
# The side table has these columns of the raw record, then the column that was not decoded and the reason.
UNDECODED_COLUMNS = ("topic", "partition", "offset", "timestamp", "key", "value")
# The object around a value: {_OUTER: {_INSIDE: value, mark: {}}}.
_OUTER, _INSIDE, _CORRUPT = "kcli", "value", JSON_OPTIONS["columnNameOfCorruptRecord"]
_PARSED, _EXACT, _DECODED, _FAILED = "_kcli_{}_parsed", "_kcli_{}_exact", "_kcli_{}_decoded", "_kcli_{}_failed"
_TIME = "HH:mm[:ss[.SSSSSSSSS]]"
_DECODING_OPTIONS = JSON_OPTIONS | {
    "mode": "PERMISSIVE",
    "maxNestingDepth": str(MAX_DEPTH + 2),
    "dateFormat": "yyyy-MM-dd",
    "timestampFormat": f"yyyy-MM-dd[['T'][ ]{_TIME}[XXX][XX]]",
    "timestampNTZFormat": f"yyyy-MM-dd[['T'][ ]{_TIME}]",
}
# A name that a path of get_json_object may have.
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TEXTS = ArrayType(StringType())
# Tokens of JSON outside of which are no digits: strings and numbers.
_TOKENS = r'(?s)("(?:[^"\\]++|\\.)*+")|(-?[0-9][0-9.eE+\-]*+)'
# What a string field has of a number with a fraction or an exponent, or of an object or array with one.
_OF_DOUBLE = r"(?s)^(?:-?[0-9]+\.[0-9]|-?Infinity|[{\[].*(?:[0-9][.E]|Infinity))"

# This many characters of a value are quoted.
_MAX_QUOTED = 40
_FLOAT_MAX = 3.4028235677973366e38
_BITS = {ByteType: 8, ShortType: 16, IntegerType: 32, LongType: 64}
_NO_REASON_FOUND = "does not fit the schema"


class Decoding(NamedTuple):
    """How one column, key or value, is decoded; `schema` has the names in the JSON, `written` those in the files.

    `mark` is a name of letters and digits that no value can be expected to have. `is_inferred` is True for a schema that has
    all fields of the values, except those without a name, which Spark does not infer.
    """

    column: str
    how: str
    schema: StructType | None = None
    written: StructType | None = None
    flatten: bool = False
    mark: str = "mark0"
    is_inferred: bool = False

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
        text = F.col(self.column).cast(StringType())
        name = _PARSED.format(self.column)
        frame = frame.withColumn(name, self._parsed(F.when(F.is_valid_utf8(text), text), self.schema))
        # By position: two names of the JSON may differ in case only, which Spark does not distinguish.
        value = F.element_at(F.col(name).getField(_OUTER), _INSIDE).cast(self.written)
        is_bad = ~self._is_one_value(name)
        temporary = [name]
        if _leaf_types(self.schema) & {StringType, DecimalType}:
            exact = _EXACT.format(self.column)
            again = ~is_bad
            if DecimalType not in _leaf_types(self.schema):
                again = again & _any_leaf(value, self.written, _is_of_double)
            quoted = F.when(again, self._with_quoted_numbers(text))
            frame = frame.withColumn(exact, self._parsed(quoted, _text_schema(self.schema)))
            texts = F.element_at(F.col(exact).getField(_OUTER), _INSIDE).cast(_text_schema(self.written))
            is_bad = is_bad | (again & ~self._is_one_value(exact)) | self._is_any_decimal_text(texts)
            value = F.when(F.col(exact).isNotNull(), self._exact(value, texts, self.written)).otherwise(value)
            temporary.append(exact)
        is_bad = is_bad | _any_leaf(value, self.written, _is_infinite)
        return self._judged(frame, F.col(self.column).isNotNull() & is_bad, value).drop(*temporary)

    def _parsed(self, text: Column, schema: StructType) -> Column:
        """Return the object around a JSON value, and Spark's column of corrupt records."""
        around = StructType().add(_OUTER, MapType(StringType(), schema)).add(_CORRUPT, StringType())
        wrapped = F.concat(F.lit(f'{{"{_OUTER}":{{"{_INSIDE}":'), text, F.lit(f',"{self.mark}":{{}}}}}}'))
        return F.from_json(wrapped, around, _DECODING_OPTIONS)

    def _is_one_value(self, parsed: str) -> Column:
        """Return a column that is true if the object around a value has the two fields that it was given, and all fits."""
        keys = F.map_keys(F.col(parsed).getField(_OUTER)) == F.array(F.lit(_INSIDE), F.lit(self.mark))
        return F.coalesce(keys, F.lit(False)) & F.col(parsed).getField(_CORRUPT).isNull()

    def _with_quoted_numbers(self, text: Column) -> Column:
        """Return JSON whose numbers are strings that begin with the mark."""
        quoted = F.regexp_replace(text, F.lit(_TOKENS), F.lit(f'$1"{self.mark}$2"'))
        return F.replace(quoted, F.lit(f'"{self.mark}"'), F.lit(""))

    def _exact(self, value: Column, texts: Column, kind: DataType) -> Column:
        """Return a value whose strings are those of `texts`, parsed by `_text_schema`, without marks."""
        if isinstance(kind, StringType):
            nested = F.regexp_replace(texts, F.lit(f'"{self.mark}([^"]*)"'), F.lit("$1"))
            return F.regexp_replace(nested, F.lit(f"^{self.mark}"), F.lit(""))
        if StringType not in _leaf_types(kind):
            return value
        if isinstance(kind, ArrayType):
            return F.zip_with(value, texts, lambda left, right: self._exact(left, right, kind.elementType))
        if isinstance(kind, MapType):
            return F.map_zip_with(value, texts, lambda _, left, right: self._exact(left, right, kind.valueType))
        assert isinstance(kind, StructType)
        fields = [
            self._exact(value.getField(field.name), texts.getField(field.name), field.dataType).alias(field.name)
            for field in kind.fields
        ]
        return F.when(value.isNotNull(), F.struct(*fields))

    def _is_any_decimal_text(self, texts: Column) -> Column:
        """Return a column that is true if a field of type decimal is a string in the JSON."""
        assert self.written is not None
        return _any_leaf(
            texts, self.written, lambda leaf, kind: ~leaf.startswith(self.mark) if isinstance(kind, DecimalType) else None
        )

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

    def unknown_fields(self) -> Column:
        """Return a column with the names of fields that the schema does not have, for a frame of with_decoded.

        Those in structs, arrays and maps have their path: `o.q`, `items[*].q`, `m.*.q`.
        """
        assert self.schema is not None
        text = F.col(self.column).cast(StringType())
        is_checked = ~F.col(self.failed)
        if self.is_inferred:
            is_checked = is_checked & text.contains('""')
        return _unknown_fields(F.when(is_checked, text), self.schema, "")

    def reason(self) -> Column:
        """Return a column with the reason why this one was not decoded, found by a Python worker; null if it was decoded."""
        schema = self.schema

        def reason_of(data: bytes | None) -> str | None:
            if data is None:
                return None
            return utf8_reason(bytes(data)) if schema is None else json_reason(bytes(data), schema)

        return F.udf(reason_of, StringType(), useArrow=False)(F.when(F.col(self.failed), F.col(self.column)))


def _unknown_fields(text: Column, kind: DataType, path: str) -> Column:
    """Return a column with the unknown fields of a JSON text whose value has a type; `path` is put before their names."""
    if isinstance(kind, ArrayType | MapType):
        # A value of type string has the JSON of any value.
        texts = F.from_json(text, MapType(StringType(), StringType()) if isinstance(kind, MapType) else _TEXTS, JSON_OPTIONS)
        items = F.map_values(texts) if isinstance(kind, MapType) else texts
        inner, at = (kind.valueType, ".*") if isinstance(kind, MapType) else (kind.elementType, "[*]")
        found = F.transform(items, lambda item: _unknown_fields(item, inner, f"{path}{at}"))
        return F.array_distinct(F.flatten(F.coalesce(found, F.array().cast(ArrayType(_TEXTS)))))
    assert isinstance(kind, StructType)
    prefix = f"{path}." if path else ""
    known = F.array(*(F.lit(field.name) for field in kind.fields))
    names = F.coalesce(F.array_except(F.json_object_keys(text), known), F.array().cast(_TEXTS))
    every = [F.transform(names, lambda name: F.concat(F.lit(prefix), F.when(name == "", '""').otherwise(name)))]
    for field in kind.fields:
        if _has_struct(field.dataType):
            if _PLAIN_NAME.fullmatch(field.name):
                value = F.get_json_object(text, f"$.{field.name}")
            else:
                value = F.from_json(text, StructType().add(field.name, StringType()), JSON_OPTIONS).getField(field.name)
            every.append(_unknown_fields(value, field.dataType, f"{prefix}{field.name}"))
    return F.concat(*every)


def _has_struct(kind: DataType) -> bool:
    if isinstance(kind, ArrayType | MapType):
        return _has_struct(kind.elementType if isinstance(kind, ArrayType) else kind.valueType)
    return isinstance(kind, StructType)


def _leaf_types(kind: DataType) -> set[type[DataType]]:
    """Return the types of the scalar values in a type."""
    if isinstance(kind, StructType):
        return set().union(*(_leaf_types(field.dataType) for field in kind.fields))
    if isinstance(kind, ArrayType | MapType):
        return _leaf_types(kind.elementType if isinstance(kind, ArrayType) else kind.valueType)
    return {type(kind)}


def _text_schema(schema: StructType) -> StructType:
    """Return a schema with strings for all scalar values."""
    return StructType([StructField(field.name, _texts(field.dataType)) for field in schema.fields])


def _texts(kind: DataType) -> DataType:
    if isinstance(kind, StructType):
        return _text_schema(kind)
    if isinstance(kind, ArrayType):
        return ArrayType(_texts(kind.elementType))
    return MapType(StringType(), _texts(kind.valueType)) if isinstance(kind, MapType) else StringType()


Check = Callable[[Column, DataType], Column | None]


def _is_of_double(leaf: Column, kind: DataType) -> Column | None:
    return leaf.rlike(_OF_DOUBLE) if isinstance(kind, StringType) else None


def _is_infinite(leaf: Column, kind: DataType) -> Column | None:
    return F.abs(leaf) == F.lit(float("inf")) if isinstance(kind, FloatType | DoubleType) else None


def _any_leaf(value: Column, kind: DataType, check: Check) -> Column:
    """Return a column that is true if a check is true for a scalar value in a value; None is no check for that type."""
    found = _any_checked(value, kind, check)
    return F.lit(False) if found is None else F.coalesce(found, F.lit(False))


def _any_checked(value: Column, kind: DataType, check: Check) -> Column | None:
    if isinstance(kind, ArrayType):
        if _any_checked(value, kind.elementType, check) is None:
            return None
        return F.exists(value, lambda item: _any_leaf(item, kind.elementType, check))
    if isinstance(kind, MapType):
        return _any_checked(F.map_values(value), ArrayType(kind.valueType), check)
    if isinstance(kind, StructType):
        found = [_any_checked(value.getField(field.name), field.dataType, check) for field in kind.fields]
        checks = [F.coalesce(one, F.lit(False)) for one in found if one is not None]
        return functools.reduce(operator.or_, checks) if checks else None
    return check(value, kind)


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


# ---------------------------------------------------------------------------------------------------------------- reasons


def utf8_reason(data: bytes) -> str:
    """Return why bytes are not UTF-8."""
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return f"not UTF-8: byte {error.start} (0x{data[error.start]:02x})"
    return "not UTF-8"


def json_reason(data: bytes, schema: StructType) -> str:
    """Return why bytes are not a JSON object of a schema."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return utf8_reason(data)
    if not text.strip(" \t\r\n"):
        return "empty"
    if text.startswith("\ufeff"):
        return "begins with a byte order mark"
    too_deep = f"nested deeper than {MAX_DEPTH} levels"
    try:
        parsed = json.loads(text, parse_constant=_refuse)
        if _depth(parsed) > MAX_DEPTH:
            return too_deep
        return next(_misfits(parsed, schema, ""), _NO_REASON_FOUND)
    except RecursionError:
        return too_deep
    except json.JSONDecodeError as error:
        return f"not JSON: {error.msg[:1].lower()}{error.msg[1:]} at character {error.pos}"
    except ValueError as error:
        return f"not JSON: {error}"


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not a JSON number")


def _depth(value: Any) -> int:
    """Return how many levels of objects and arrays a value has."""
    depth, level = 0, [value]
    while level := [item for item in level if isinstance(item, dict | list)]:
        depth += 1
        level = [inner for item in level for inner in (item.values() if isinstance(item, dict) else item)]
    return depth


def _misfits(value: Any, wanted: DataType, path: str) -> Iterator[str]:
    """Yield a sentence for each part of a value that does not fit its type."""
    if value is None:
        return
    if isinstance(wanted, StructType | MapType):
        if not isinstance(value, dict):
            yield _is_not(path, value, "an object")
            return
        if isinstance(wanted, MapType):
            types = dict.fromkeys(value, wanted.valueType)
        else:
            types = {field.name: field.dataType for field in wanted.fields if field.name in value}
        for name, kind in types.items():
            yield from _misfits(value[name], kind, f"{path}.{name}" if path else name)
    elif isinstance(wanted, ArrayType):
        if not isinstance(value, list):
            yield _is_not(path, value, "an array")
            return
        for index, item in enumerate(value):
            yield from _misfits(item, wanted.elementType, f"{path}[{index}]")
    else:
        sentence = _scalar_misfit(value, wanted, path)
        if sentence is not None:
            yield sentence


def _scalar_misfit(value: Any, wanted: DataType, path: str) -> str | None:
    """Return why a value does not fit a scalar type; None if it seems to fit."""
    name = wanted.simpleString()
    if isinstance(wanted, BooleanType):
        return None if isinstance(value, bool) else _is_not(path, value, name)
    if isinstance(wanted, NumericType):
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return _number_misfit(value, wanted, path) if is_number else _is_not(path, value, name)
    if isinstance(wanted, DateType | TimestampType | TimestampNTZType):
        return f"{path} is {_quoted(value)}, not {name}"
    if isinstance(wanted, BinaryType):
        return None if isinstance(value, str) and _is_base64(value) else f"{path} is not base64"
    return None


def _number_misfit(value: float, wanted: NumericType, path: str) -> str | None:
    name = wanted.simpleString()
    if isinstance(wanted, FloatType | DoubleType):
        fits = _fits_double(value) and (isinstance(wanted, DoubleType) or abs(value) < _FLOAT_MAX)
        return None if fits else f"{path} is out of the range of {name}"
    if isinstance(wanted, DecimalType):
        fits = abs(Decimal(repr(value))).adjusted() < wanted.precision - wanted.scale
    elif not isinstance(value, int):
        return f"{path} is {_quoted(value)}, a number with a fraction or an exponent, not {name}"
    else:
        limit = 1 << (_BITS[type(wanted)] - 1)
        fits = -limit <= value < limit
    return None if fits else f"{path} is {_quoted(value)}, out of the range of {name}"


def _is_not(path: str, value: Any, wanted: str) -> str:
    return f"{path or 'the value'} is {_json_type(value)}, not {wanted}"


def _json_type(value: Any) -> str:
    if isinstance(value, bool):
        return "a boolean"
    kinds = {str: "a string", int: "a number", float: "a number", list: "an array", dict: "an object"}
    return kinds[type(value)]


def _quoted(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MAX_QUOTED else f"{text[:_MAX_QUOTED]}..."


def _fits_double(value: float) -> bool:
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False


def _is_base64(text: str) -> bool:
    try:
        base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return False
    return True
