"""PyTorch Geometric Temporal works from an installation without its compiled dependencies."""

import torch

from neutronstream.models.geometric_temporal import load_geometric_temporal


def test_a_recurrent_layer_runs_without_the_compiled_packages() -> None:
    layer = load_geometric_temporal().nn.recurrent.GConvGRU(4, 8, 2)
    edges = torch.tensor([[0, 1], [1, 2]])
    state = layer(torch.ones(3, 4), edges)
    assert state.shape == (3, 8)
    assert not torch.equal(state, layer(torch.ones(3, 4), edges, H=state))
