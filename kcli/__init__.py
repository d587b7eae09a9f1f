"""kcli opens, checks, repairs and queries what Apache Kafka leaves on disk.

Rooms, from the top down: commands > inspect, spark > state > log, protocol > format. ARCHITECTURE.md tells why.
"""

__version__ = "0.1.0"
