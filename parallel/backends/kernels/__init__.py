"""Loops over the entries of a sparse matrix: arrays in, preallocated arrays out.

Invariant: the entries of a row are added in their order, each column by itself, so that a slice of
the columns has the bits that it has in the whole.
"""

from .loops import attention, attention_back, multiply, weigh, weigh_back

__all__ = ["attention", "attention_back", "multiply", "weigh", "weigh_back"]
