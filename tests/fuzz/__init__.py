"""A fuzzer of log directories for repair, verify and every reader; see properties.py for what it checks."""
