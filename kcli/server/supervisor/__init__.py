"""A cluster on one machine: `kcli serve --brokers N` runs its nodes, and `kcli cluster` acts on them.

layout      which nodes there are, with their roles, ports, directories and configurations; cluster.properties
supervisor  the process above the nodes: forks them, starts those again that die, stops them in order
control     how other processes ask it: the requests, and the socket
"""
