"""Why a key or value was not decoded: one sentence for the side table OUT.undecoded (see kcli.spark.decoding).

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
    NumericType,
    ShortType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

# With values nested some hundred levels deep, a job with Spark's inference fails or does not end.
MAX_DEPTH = 64
# This many characters of a value are quoted.
_MAX_QUOTED = 40
_FLOAT_MAX = 3.4028235677973366e38
_BITS = {ByteType: 8, ShortType: 16, IntegerType: 32, LongType: 64}
_NO_REASON_FOUND = "does not fit the schema"


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
