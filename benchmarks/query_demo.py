"""The demo's last step: a query with Spark SQL on the Parquet that `kcli to-parquet` wrote."""

from __future__ import annotations

import sys

from kcli.spark.session import start_session


def main(path: str) -> None:
    """Print records, bytes and time span of each topic below `path`."""
    spark = start_session("local[2]", "kcli demo", {"spark.ui.showConsoleProgress": "false"})
    spark.read.parquet(path).createOrReplaceTempView("records")
    query = """
        SELECT topic, count(*) AS records, count(DISTINCT partition) AS partitions, sum(length(value)) AS value_bytes,
               min(timestamp) AS first, max(timestamp) AS last
        FROM records GROUP BY topic ORDER BY records DESC LIMIT 10"""
    spark.sql(query).show(truncate=False)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
