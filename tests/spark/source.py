"""Reading with the source's own classes, no JVM: the same calls that Spark's Python workers make."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

from kcli.spark.arrow_spans import arrow_schema
from kcli.spark.data_source import KafkaLogDataSource
from kcli.spark.splits import LogSplit


def splits_of(path: Path | str, **options: str) -> tuple[Any, list[LogSplit]]:
    """(reader, splits) of a read; option names have `_` for `.`. One split, if no more are asked for or needed."""
    given = {"minPartitions": "1"} | {name.replace("_", "."): value for name, value in options.items()}
    source = KafkaLogDataSource({"path": str(path), **given})
    reader = pickle.loads(pickle.dumps(source)).reader(source.schema())
    return reader, reader.partitions()


def rows_of(path: Path | str, **options: str) -> list[dict[str, Any]]:
    """All rows of a read; every Arrow batch is validated in full and held against the schema that Spark expects."""
    reader, splits = splits_of(path, **options)
    expected = arrow_schema(reader.schema)
    rows: list[dict[str, Any]] = []
    for split in splits:
        for batch in pickle.loads(pickle.dumps(reader)).read(pickle.loads(pickle.dumps(split))):
            batch.validate(full=True)
            assert batch.schema.equals(expected)
            rows += batch.to_pylist()
    return rows
