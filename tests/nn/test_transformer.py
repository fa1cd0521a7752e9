import pytest
import torch
from torch import nn

from mstar_core.nn.linear import pack
from mstar_core.nn.transformer import TransformerBlock, attend_within

HIDDEN, HEADS, MLP = 32, 4, 64


@pytest.fixture
def block():
    torch.manual_seed(0)
    made = TransformerBlock(HIDDEN, HEADS, MLP, 1e-5, layer=3)
    for parameter in made.parameters():
        parameter.data = torch.randn_like(parameter) * 0.3
    return made


@pytest.fixture
def reference(block):
    """PyTorch's own pre-norm block with the same weights."""
    theirs = nn.TransformerEncoderLayer(
        HIDDEN, HEADS, MLP, dropout=0.0, activation="gelu", layer_norm_eps=1e-5, batch_first=True, norm_first=True
    ).eval()
    names = {
        "self_attn.in_proj_weight": block.attention.qkv.weight,
        "self_attn.in_proj_bias": block.attention.qkv.bias,
        "self_attn.out_proj.weight": block.attention.out.weight,
        "self_attn.out_proj.bias": block.attention.out.bias,
        "linear1.weight": block.mlp.up.weight,
        "linear1.bias": block.mlp.up.bias,
        "linear2.weight": block.mlp.down.weight,
        "linear2.bias": block.mlp.down.bias,
        "norm1.weight": block.attention_norm.weight,
        "norm1.bias": block.attention_norm.bias,
        "norm2.weight": block.mlp_norm.weight,
        "norm2.bias": block.mlp_norm.bias,
    }
    theirs.load_state_dict(names)
    return theirs


def test_a_block_computes_what_pytorchs_own_does(block, reference):
    x = torch.randn(2, 5, HIDDEN)
    with torch.inference_mode():
        expected = reference(x)
        torch.testing.assert_close(block(x.flatten(0, 1), attend_within(2)).view(2, 5, HIDDEN), expected)
        block.apply(pack)
        torch.testing.assert_close(block(x.flatten(0, 1), attend_within(2)).view(2, 5, HIDDEN), expected)


def test_attention_is_the_callers_who_learns_the_layer(block):
    seen = []

    def attend(layer, queries, keys, values):
        seen.append((layer, queries.shape, keys.shape, values.shape))
        return values

    block(torch.randn(7, HIDDEN), attend)
    assert seen == [(3, *[(7, HEADS, HIDDEN // HEADS)] * 3)]


def test_rotary_tables_turn_queries_and_keys_but_not_values(block):
    cos, sin = torch.full((7, 1, 8), -1.0), torch.zeros(7, 1, 8)
    seen = []

    def attend(layer, queries, keys, values):
        seen.append((queries.clone(), keys.clone(), values.clone()))
        return values

    x = torch.randn(7, HIDDEN)
    block(x, attend)
    block(x, attend, (cos, sin))
    (queries, keys, values), (turned_queries, turned_keys, same) = seen
    assert torch.equal(turned_queries, -queries)
    assert torch.equal(turned_keys, -keys)
    assert torch.equal(same, values)
