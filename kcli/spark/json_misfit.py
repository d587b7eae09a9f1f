"""Why a key or value did not decode: one sentence for the side table OUT.undecoded (see kcli.spark.decoding).

Spark decides which records decode, and says no more of the others. So a Python worker looks at these, and only at these:

    checked in this order             the reason begins with
    --------------------------------  ------------------------------------------------------------------------------------
    the bytes are UTF-8               not UTF-8: byte 0 (0xff)
    there is a text                   empty
    no byte order mark                begins with a byte order mark
    it is JSON by RFC 8259            not JSON: expecting value at character 3
    at most MAX_DEPTH levels          nested deeper than 64 levels
    each field fits its type          items[2].price is a string, not double
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

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
    ShortType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

# Spark's inference breaks on values that are nested some hundred levels deep: a job then fails or does not end.
MAX_DEPTH = 64
# Of a value so many characters are quoted.
_MOST_QUOTED = 40
_FLOAT_MAX = 3.4028235677973366e38
_BITS = {ByteType: 8, ShortType: 16, IntegerType: 32, LongType: 64}
_OTHERWISE = "does not fit the schema"


def utf8_reason(data: bytes) -> str:
    """Return why bytes are not a text."""
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
    deep = f"nested deeper than {MAX_DEPTH} levels"
    try:
        parsed = json.loads(text, parse_constant=_refuse)
        if _depth(parsed) > MAX_DEPTH:
            return deep
        return next(_misfits(parsed, schema, ""), _OTHERWISE)
    except RecursionError:
        return deep
    except json.JSONDecodeError as error:
        return f"not JSON: {error.msg[:1].lower()}{error.msg[1:]} at character {error.pos}"
    except ValueError as error:
        return f"not JSON: {error}"


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not a number of JSON")


def _depth(value: Any) -> int:
    """How many objects and arrays are within each other."""
    depth, level = 0, [value]
    while level := [item for item in level if isinstance(item, dict | list)]:
        depth += 1
        level = [inner for item in level for inner in (item.values() if isinstance(item, dict) else item)]
    return depth


def _misfits(value: Any, wanted: DataType, path: str) -> Iterator[str]:
    """The sentences of what does not fit, the first one first."""
    if value is None:
        return
    if isinstance(wanted, StructType):
        if not isinstance(value, dict):
            yield _not(path, value, "an object")
            return
        for field in wanted.fields:
            if field.name in value:
                yield from _misfits(value[field.name], field.dataType, f"{path}.{field.name}" if path else field.name)
    elif isinstance(wanted, ArrayType):
        if not isinstance(value, list):
            yield _not(path, value, "an array")
            return
        for index, item in enumerate(value):
            yield from _misfits(item, wanted.elementType, f"{path}[{index}]")
    elif isinstance(wanted, MapType):
        if not isinstance(value, dict):
            yield _not(path, value, "an object")
            return
        for name, item in value.items():
            yield from _misfits(item, wanted.valueType, f"{path}.{name}")
    else:
        sentence = _scalar_misfit(value, wanted, path)
        if sentence is not None:
            yield sentence


def _scalar_misfit(value: Any, wanted: DataType, path: str) -> str | None:
    """The sentence of a value that does not fit a type without parts; None where it seems to fit."""
    name = wanted.simpleString()
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if isinstance(wanted, BooleanType):
        return None if isinstance(value, bool) else _not(path, value, name)
    if type(wanted) in _BITS:
        if not is_number:
            return _not(path, value, name)
        if isinstance(value, float):
            return f"{path} is {_quoted(value)}, a number with a fraction or an exponent, not {name}"
        most = 1 << (_BITS[type(wanted)] - 1)
        return None if -most <= value < most else f"{path} is {_quoted(value)}, out of the range of {name}"
    if isinstance(wanted, FloatType | DoubleType):
        if not is_number:
            return _not(path, value, name)
        fits = _fits_double(value) and (isinstance(wanted, DoubleType) or abs(value) < _FLOAT_MAX)
        return None if fits else f"{path} is out of the range of {name}"
    if isinstance(wanted, DecimalType):
        if not is_number:
            return _not(path, value, name)
        whole = abs(Decimal(repr(value))).adjusted() + 1
        return None if whole <= wanted.precision - wanted.scale else f"{path} is {_quoted(value)}, out of the range of {name}"
    if isinstance(wanted, DateType | TimestampType | TimestampNTZType):
        return f"{path} is {_quoted(value)}, not {name}"
    if isinstance(wanted, BinaryType):
        return None if isinstance(value, str) and _is_base64(value) else f"{path} is not base64"
    return None


def _not(path: str, value: Any, wanted: str) -> str:
    return f"{path or 'the value'} is {_kind(value)}, not {wanted}"


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "a boolean"
    kinds = {str: "a string", int: "a number", float: "a number", list: "an array", dict: "an object"}
    return kinds[type(value)]


def _quoted(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MOST_QUOTED else f"{text[:_MOST_QUOTED]}..."


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
