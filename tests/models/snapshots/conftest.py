"""torch_geometric is loaded once, past the deprecation warnings of its own import."""

from neutronstream.models.geometric_temporal import load_geometric_temporal

load_geometric_temporal()
