"""kcli is Kafka in one Python program: a broker, and tools on its log directories and Apache Kafka's that need no broker.

Packages, from the top down: commands > simulator > server, spark, inspect > state > log, protocol > format. ARCHITECTURE.md
has the reasons.
"""

__version__ = "0.1.0"
