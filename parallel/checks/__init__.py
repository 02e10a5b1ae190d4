"""The battery that a model of one's own is run through: `check_model`."""

from .battery import Check, CheckReport, check_model

__all__ = ["Check", "CheckReport", "check_model"]
