"""Dynamic GNNs: the API to define one, and published models, one a file."""

from .base import DynamicGNN, Reads, can_price, can_scan
from .chain import Chain, ChainMembers, Scanned
from .dygnn import DyGNN
from .dyrep import DyRep
from .jodie import JODIE
from .ldg import LDG
from .pairs import Pairs, PairsAround, Priced
from .registry import MODELS, build, options_of
from .tgn import TGN
from .views import Around, Events, Level, Links, Members, Near, Nodes, Written

__all__ = [
    "JODIE",
    "LDG",
    "MODELS",
    "TGN",
    "Around",
    "Chain",
    "ChainMembers",
    "DyGNN",
    "DyRep",
    "DynamicGNN",
    "Events",
    "Level",
    "Links",
    "Members",
    "Near",
    "Nodes",
    "Pairs",
    "PairsAround",
    "Priced",
    "Reads",
    "Scanned",
    "Written",
    "build",
    "can_price",
    "can_scan",
    "options_of",
]
