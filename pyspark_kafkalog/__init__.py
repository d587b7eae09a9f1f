"""The data source `kafka-log` under the name `kafkalog`, which SQL accepts without quotes; see pyspark_kcli.

Spark registers one data source for each top-level package named `pyspark_...`.
"""

from kcli.spark.data_source import KafkaLogDataSourceAlias as DefaultSource

__all__ = ["DefaultSource"]
