import pytest
import torch

from mstar_core.engines.base import TensorParallel
from mstar_core.nn.linear import Linear


def made(inputs, outputs, dtype):
    torch.manual_seed(1)
    layer = Linear(inputs, outputs)
    layer.weight.data = torch.randn(sum(outputs), inputs).to(dtype) / inputs**0.5
    return layer


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_packed_layer_computes_what_the_plain_one_does(dtype):
    layer = made(96, [64, 32], dtype)
    x = torch.randn(7, 96).to(dtype)
    expected = layer(x)
    layer.pack()
    torch.testing.assert_close(layer(x), expected)


@pytest.mark.parametrize("packed_for", [16, 66])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("sizes", [(64, 80), (768, 1280), (2048, 768)])
def test_a_row_has_the_same_bits_whatever_the_number_of_rows(dtype, sizes, packed_for):
    layer = made(sizes[0], [sizes[1]], dtype)
    layer.pack(packed_for)
    x = torch.randn(70, sizes[0]).to(dtype)
    whole, bent = layer(x), layer.gelu(x)
    for rows in range(1, 65):
        few = x[:rows].contiguous()
        assert torch.equal(layer(few), whole[:rows]), rows
        assert torch.equal(layer.gelu(few), bent[:rows]), rows


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gelu_in_one_pass_is_that_in_two(dtype):
    layer = made(96, [64], dtype)
    x = torch.randn(7, 96).to(dtype)
    expected = torch.nn.functional.gelu(layer(x))
    torch.testing.assert_close(layer.gelu(x), expected)
    layer.pack()
    torch.testing.assert_close(layer.gelu(x), expected, atol=1e-2 if dtype == torch.bfloat16 else 1e-6, rtol=1e-2)


def test_shards_hold_equal_shares_and_refuse_what_cannot_be_shared():
    two = TensorParallel(rank=0, size=2)
    assert Linear(8, [6, 4], parallel=two).weight.shape == (5, 8)
    assert Linear(8, [6, 4], split="inputs", parallel=two, reduce=torch.neg).weight.shape == (10, 4)
    with pytest.raises(ValueError, match="an axis of 5 cannot be split over 2 ranks"):
        Linear(8, [5], parallel=two)


def test_shared_inputs_without_a_sum_over_the_ranks_are_refused():
    with pytest.raises(ValueError, match="pass reduce"):
        Linear(8, [4], split="inputs", parallel=TensorParallel(rank=0, size=2))


def test_a_bias_is_added_once_to_the_sum_of_the_ranks():
    inputs, weight, bias = torch.randn(3, 8), torch.randn(4, 8), torch.randn(4)
    partial = inputs[:, 4:] @ weight[:, 4:].T
    layer = Linear(
        8, [4], bias=True, split="inputs", parallel=TensorParallel(rank=0, size=2), reduce=lambda mine: mine + partial
    )
    layer.weight.data, layer.bias.data = weight[:, :4], bias
    torch.testing.assert_close(layer(inputs[:, :4]), inputs @ weight.T + bias)
