"""Models of snapshots: static and recurrent GNNs, written against one operator."""

from .base import SnapshotModel, State
from .decoupled_gat import DecoupledGAT
from .evolve_gcn import EvolveGCNH, EvolveGCNO
from .gat import GAT
from .gc_lstm import GCLSTM
from .gcn import GCN
from .gcn_gru import GCNGRU
from .gconv_gru import GConvGRU
from .gconv_lstm import GConvLSTM
from .mpnn_lstm import MPNNLSTM
from .operator import Propagator
from .registry import SNAPSHOT_MODELS, build_snapshot_model, snapshot_options
from .sage import SAGE
from .tgcn import A3TGCN, TGCN

__all__ = [
    "A3TGCN",
    "GAT",
    "GCLSTM",
    "GCN",
    "GCNGRU",
    "MPNNLSTM",
    "SAGE",
    "SNAPSHOT_MODELS",
    "TGCN",
    "DecoupledGAT",
    "EvolveGCNH",
    "EvolveGCNO",
    "GConvGRU",
    "GConvLSTM",
    "Propagator",
    "SnapshotModel",
    "State",
    "build_snapshot_model",
    "snapshot_options",
]
