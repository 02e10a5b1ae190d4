"""Fused scans: the updates of a whole segment as one differentiable function of its chain.

Invariant: a scan gives what the model's `update` gives event by event, and its gradient.
"""
