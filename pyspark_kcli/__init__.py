"""The data source `kafka-log`, registered by Spark itself: it imports each top-level package named `pyspark_...`.

Spark registers the `DefaultSource` of the package. So `spark.read.format("kafka-log")` works in each environment in which kcli
is installed and Spark's Python workers run.
"""

from kcli.spark.data_source import KafkaLogDataSource as DefaultSource

__all__ = ["DefaultSource"]
