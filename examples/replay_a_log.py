"""Replay a log into the dynamic graph and ask it things as of a position."""

import numpy as np

import neutronstream as ns

log = ns.messages(5_000, seed=1)
graph = ns.DynamicGraph()
for start in range(0, len(log), 500):
    graph.apply(log[start : start + 500])
print(graph.position, "events,", graph.num_nodes, "nodes,", graph.num_links, "links")

node = int(log[2_000:2_001].src[0])
before = graph.sample(np.array([node]), 2_000, k=3)  # the store knows more, the answer does not
for other, position in zip(before.node, before.position, strict=True):
    print(log.name_of([node]), "met", log.name_of([other]), "at position", position)
