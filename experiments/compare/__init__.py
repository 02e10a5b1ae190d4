"""Several models on one log: the runs, the table and the page that compare them."""

from .run import Entry, compare, default_folder, parse_models

__all__ = ["Entry", "compare", "default_folder", "parse_models"]
