"""What Spark looks for: a top-level package named `pyspark_...` with a `DefaultSource` registers itself as a data source.

So `spark.read.format("kafka-log")` needs no more than kcli being installed where Spark's Python workers run.
"""

from kcli.spark.data_source import KafkaLogDataSource as DefaultSource

__all__ = ["DefaultSource"]
