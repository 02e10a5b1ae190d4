"""Compiled loops of the models: arrays and integers in, preallocated arrays out.

Invariant: what a loop makes of an event has the same bits whatever stands beside it.
"""
