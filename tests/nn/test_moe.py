import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from mstar_core.engines.weights import Weights, load_weights
from mstar_core.nn.linear import pack
from mstar_core.nn.moe import MixtureOfExperts, grouped, moe_names

SHAPES = {  # hidden, experts, per token, width, shared width
    "small": (48, 8, 3, 24, 40),
    "wide": (256, 16, 4, 128, 0),
}


def mixture(shape, dtype=torch.float32, *, normalised=True, packed=True):
    hidden, experts, per_token, width, shared = shape
    torch.manual_seed(0)
    layer = MixtureOfExperts(hidden, experts, per_token, width, normalised=normalised, shared_width=shared).to(dtype)
    for parameter in layer.parameters():
        parameter.data.normal_().div_(parameter.shape[-1] ** 0.5)
    if packed:
        layer.apply(pack)
    return layer


def gated(x, gate_up, down):
    gate, up = F.linear(x, gate_up).chunk(2, dim=-1)
    return F.linear(F.silu(gate) * up, down)


def one_by_one(layer, x):
    """The same layer, token by token and expert by expert."""
    outputs = []
    for token in x:
        probabilities = F.linear(token, layer.router.scores.weight).float().softmax(-1)
        weights, experts = probabilities.topk(layer.router.per_token)
        if layer.router.normalised:
            weights = weights / weights.sum()
        each = [gated(token, layer.experts.gate_up[expert], layer.experts.down[expert]) for expert in experts]
        output = sum(weight.to(x.dtype) * value for weight, value in zip(weights, each, strict=True))
        if layer.shared is not None:
            shared = gated(token, layer.shared.mlp.gate_up.weight, layer.shared.mlp.down.weight)
            output = output + F.linear(token, layer.shared.gate.weight).sigmoid() * shared
        outputs.append(output)
    return torch.stack(outputs)


@pytest.mark.parametrize("normalised", [True, False])
@pytest.mark.parametrize("tokens", [1, 4, 50])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_mixture_equals_its_experts_one_by_one(shape, tokens, normalised):
    layer = mixture(shape, normalised=normalised, packed=False)
    x = torch.randn(tokens, shape[0])
    torch.testing.assert_close(layer(x), one_by_one(layer, x), rtol=1e-4, atol=1e-5)


def test_a_mixture_in_bfloat16_is_as_close_as_bfloat16_allows():
    layer = mixture(SHAPES["small"], torch.bfloat16, packed=False)
    x = torch.randn(20, 48).bfloat16()
    torch.testing.assert_close(layer(x), one_by_one(layer, x), rtol=5e-2, atol=2e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_token_has_the_same_bits_alone_and_beside_others(shape, dtype):
    layer = mixture(shape, dtype)
    x = torch.randn(200, shape[0]).to(dtype)
    together = layer(x)
    for count in (1, 2, 3, 7, 16, 33, 100):
        for start in (0, 90):
            assert torch.equal(layer(x[start : start + count]), together[start : start + count])


def test_tokens_that_all_choose_the_same_experts_have_the_same_bits_too():
    layer = mixture(SHAPES["small"])
    x = torch.randn(1, 48)
    assert torch.equal(layer(x.repeat(70, 1)), layer(x).repeat(70, 1))


def test_groups_hold_every_pair_once_and_at_least_so_many_rows():
    chosen = torch.tensor([[3, 0], [3, 1], [0, 3]])
    groups = grouped(chosen, 5, least=4)
    assert groups.ends.tolist() == [4, 8, 8, 12, 12]
    starts = [0, 4, 8, 8, 12]
    for token, experts in enumerate(chosen.tolist()):
        for expert, row in zip(experts, groups.row_of[token].tolist(), strict=True):
            assert starts[expert] <= row < groups.ends[expert]
            assert groups.token_of[row] == token
    assert len(set(groups.row_of.flatten().tolist())) == chosen.numel()


def test_published_experts_become_fused_weights(tmp_path):
    hidden, experts, per_token, width, shared = SHAPES["small"]
    expected = mixture(SHAPES["small"], packed=False)
    source = {"mlp.gate.weight": expected.router.scores.weight}
    for expert in range(experts):
        gate, up = expected.experts.gate_up[expert].chunk(2)
        names = {"gate": gate, "up": up, "down": expected.experts.down[expert]}
        source |= {f"mlp.experts.{expert}.{name}_proj.weight": value for name, value in names.items()}
    gate, up = expected.shared.mlp.gate_up.weight.chunk(2)
    names = {"gate": gate, "up": up, "down": expected.shared.mlp.down.weight}
    source |= {f"mlp.shared_expert.{name}_proj.weight": value for name, value in names.items()}
    source["mlp.shared_expert_gate.weight"] = expected.shared.gate.weight
    save_file({name: value.detach().clone() for name, value in source.items()}, tmp_path / "model.safetensors")
    with torch.device("meta"):
        layer = torch.nn.ModuleDict(
            {"moe": MixtureOfExperts(hidden, experts, per_token, width, normalised=True, shared_width=shared)}
        )
    names = moe_names("moe", "mlp", experts, shared=True)
    load_weights(layer, Weights.open(tmp_path), names, device=torch.device("cpu"), dtype=torch.float32)
    assert all(torch.equal(value, layer["moe"].state_dict()[name]) for name, value in expected.state_dict().items())
