"""The demo's last step: a query with Spark SQL on the Parquet that `kcli to-parquet` wrote."""

from __future__ import annotations

import sys

from kcli.spark.session import spark_session


def main(path: str) -> None:
    """Print records, bytes and time span of each topic below `path`."""
    spark = spark_session("kcli demo", master="local[2]")
    spark.read.parquet(path).createOrReplaceTempView("records")
    query = """
        SELECT topic, count(*) AS records, count(DISTINCT partition) AS partitions, sum(length(value)) AS value_bytes,
               min(timestamp) AS first, max(timestamp) AS last
        FROM records GROUP BY topic ORDER BY records DESC LIMIT 10"""
    spark.sql(query).show(truncate=False)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
