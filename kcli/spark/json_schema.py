"""The schema of JSON values: given, inferred or saved, and the columns of its fields.

    --value-schema         is
    ---------------------  -----------------------------------------------------------------------------------------------
    a file that exists     what --save-schema wrote, or any schema of Spark: its JSON (`df.schema.json()`) or DDL
    any other text         DDL, such as `id bigint, name string`
    not given              inferred by Spark from the values that are JSON objects

For JSON the fields `a` and `A` are different, for Spark and Hive they are the same. So if names differ in case only, the second
one is written as `A_2` in the files; the schema has the names of the JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    MapType,
    NumericType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

INFERRED = "inferred"
# With values nested some hundred levels deep, a job with Spark's inference fails or does not end.
MAX_DEPTH = 64
_LEAVES = (StringType, BooleanType, NumericType, DateType, TimestampType, TimestampNTZType, BinaryType, VariantType)
_CORRUPT = "kcli corrupt"
# JSON by RFC 8259: no NaN, no single quotes. A deeper value would make Spark's inference fail.
JSON_OPTIONS = {
    "allowNonNumericNumbers": "false",
    "allowSingleQuotes": "false",
    "columnNameOfCorruptRecord": _CORRUPT,
    "maxNestingDepth": str(MAX_DEPTH),
}


class SchemaTextError(ValueError):
    """A schema that cannot be read or used; the message is one sentence."""


def given_schema(text: str) -> StructType:
    """Return the schema of --value-schema, a file's name or DDL, parsed by the running Spark. Raises SchemaTextError."""
    source = repr(text)
    try:
        if is_file(text):
            source = f"the file {text}"
            text = Path(text).read_text("utf-8")
        if text.lstrip().startswith("{"):
            parsed = StructType.fromJson(json.loads(text))
        else:
            parsed = StructType.fromDDL(text)
    except OSError as error:
        raise SchemaTextError(f"{text}: {error.strerror or error}") from None
    except Exception:
        raise SchemaTextError(
            f"{source} is not a schema: --value-schema takes DDL such as 'id bigint, name string', or a file with DDL or with "
            "a schema as Spark's JSON"
        ) from None
    if not isinstance(parsed, StructType) or not parsed.fields:
        raise SchemaTextError(f"{source} is not the schema of a JSON object: name its fields, such as 'id bigint, name string'")
    _check_type(parsed, source, "")
    return parsed


def is_file(text: str) -> bool:
    """Return True if a text is the name of a file."""
    try:
        return Path(text).is_file()
    except (OSError, ValueError):
        return False  # DDL that is too long for a name, or contains a NUL


def _check_type(kind: DataType, source: str, path: str) -> None:
    """Raise SchemaTextError for a type that cannot be decoded from JSON, or not be written to Parquet."""
    if isinstance(kind, StructType):
        names = [field.name for field in kind.fields]
        if not names:
            raise SchemaTextError(f"{source}: the struct {path} has no fields")
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise SchemaTextError(f"{source} has the field {_joined(path, twice)} twice; name each field once")
        for field in kind.fields:
            _check_type(field.dataType, source, _joined(path, field.name))
    elif isinstance(kind, ArrayType):
        _check_type(kind.elementType, source, path)
    elif isinstance(kind, MapType):
        if type(kind.keyType) is not StringType:
            raise SchemaTextError(f"{source}: the keys of the map {path} must be of type string, as JSON has them")
        _check_type(kind.valueType, source, path)
    elif type(kind) is not StringType and (isinstance(kind, StringType) or not isinstance(kind, _LEAVES)):
        raise SchemaTextError(f"{source}: the type {kind.simpleString()} of {path} cannot be decoded from JSON; try string")


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def inferred_schema(spark: SparkSession, values: DataFrame) -> StructType | None:
    """Infer the schema of the column `value`, without nulls, from its JSON objects; None if there is no value.

    Raises SchemaTextError, and as Spark does.
    """
    text = F.col("value").cast(StringType())
    is_object = F.is_valid_utf8(text) & F.ltrim(text, F.lit(" \t\r\n")).startswith("{")
    options = {**JSON_OPTIONS, "mode": "DROPMALFORMED"}
    found = spark.read.options(**options).json(values.where(is_object).select(text.alias("value"))).schema
    merged = _without_duplicates(found)
    assert isinstance(merged, StructType)
    if not merged.fields and not values.head(1):
        return None
    if not merged.fields:
        raise SchemaTextError(
            "no value is a JSON object with a field, so no schema can be inferred; run without --decode-value json"
        )
    return merged


def _without_duplicates(kind: DataType) -> DataType:
    """Return an inferred type with each field once: Spark infers two, if one object has a key twice with different types."""
    if isinstance(kind, ArrayType):
        return ArrayType(_without_duplicates(kind.elementType))
    if not isinstance(kind, StructType):
        return kind
    types: dict[str, DataType] = {}
    for field in kind.fields:
        inner = _without_duplicates(field.dataType)
        types[field.name] = inner if types.get(field.name, inner) == inner else StringType()
    return StructType([StructField(name, found) for name, found in types.items()])


def written_schema(schema: StructType, on_remark: Callable[[str], None], path: str = "") -> StructType:
    """Return the schema with the names in the files; call `on_remark` with a sentence for each field that is renamed."""
    names = unique_names([field.name for field in schema.fields])
    fields = []
    for field, name in zip(schema.fields, names, strict=True):
        at = _joined(path, field.name)
        if name != field.name:
            on_remark(f"the field {at} is written as {_joined(path, name)}: another field's name differs only in case")
        fields.append(StructField(name, _written_type(field.dataType, on_remark, at)))
    return StructType(fields)


def _written_type(kind: DataType, on_remark: Callable[[str], None], path: str) -> DataType:
    if isinstance(kind, ArrayType):
        return ArrayType(_written_type(kind.elementType, on_remark, path))
    if isinstance(kind, MapType):
        return MapType(kind.keyType, _written_type(kind.valueType, on_remark, path))
    return written_schema(kind, on_remark, path) if isinstance(kind, StructType) else kind


def unique_names(names: Iterable[str], taken: Iterable[str] = ()) -> list[str]:
    """Return the names in their order, with _2, _3, ... appended to those that are not unique when case is ignored."""
    wanted = list(names)
    used = {name.lower() for name in taken}
    # Do not append a number that makes the name of another field.
    kept = {name.lower() for name in wanted} | used
    unique = []
    for name in wanted:
        found, number = name, 1
        while found.lower() in used or (number > 1 and found.lower() in kept):
            number += 1
            found = f"{name}_{number}"
        used.add(found.lower())
        unique.append(found)
    return unique


def flattened(column: str, schema: StructType, taken: Iterable[str]) -> list[Column]:
    """Return the fields of a struct column as columns `column_field`, those of structs in it as `column_field_field`.

    Arrays and maps are not flattened. No name is one of `taken`; see unique_names.
    """
    leaves = list(_leaves(F.col(column), schema, column))
    names = unique_names([name for name, _ in leaves], taken)
    return [leaf.alias(name) for name, (_, leaf) in zip(names, leaves, strict=True)]


def _leaves(parent: Column, schema: StructType, prefix: str) -> Iterable[tuple[str, Column]]:
    for field in schema.fields:
        name, column = f"{prefix}_{field.name}", parent.getField(field.name)
        if isinstance(field.dataType, StructType):
            yield from _leaves(column, field.dataType, name)
        else:
            yield name, column


def schema_ddl(spark: SparkSession, schema: StructType) -> str:
    """Return a schema as DDL on one line, for --value-schema."""
    jvm: Any = spark._jvm
    return str(jvm.org.apache.spark.sql.types.DataType.fromJson(schema.json()).toDDL())


def save_schema(path: str, schema: StructType) -> None:
    """Write a schema to a file, as Spark's JSON. Raises SchemaTextError if the file cannot be written."""
    try:
        Path(path).write_text(json.dumps(schema.jsonValue(), indent=2) + "\n", "utf-8")
    except OSError as error:
        raise SchemaTextError(f"--save-schema {path}: {error.strerror or error}") from None
