import json

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from mstar_core.engines.base import TensorParallel
from mstar_core.engines.weights import Piece, Weights, load_weights
from mstar_core.errors import CheckpointError

CPU = torch.device("cpu")


class Fused(nn.Module):
    """A fused column-parallel weight, a row-parallel one and a norm; `size` ranks."""

    def __init__(self, size=1):
        super().__init__()
        self.fused = nn.Parameter(torch.empty(12 // size, 8, device="meta"))
        self.out = nn.Linear(8 // size, 8, bias=False, device="meta")
        self.norm = nn.Parameter(torch.empty(8, device="meta"))


NAMES = {
    "fused": [Piece("q", split=0), Piece("k", split=0)],
    "out.weight": [Piece("o", split=1)],
    "norm": [Piece("n")],
}


def tensors():
    torch.manual_seed(0)
    return {"q": torch.randn(8, 8), "k": torch.randn(4, 8), "o": torch.randn(8, 8), "n": torch.randn(8)}


def write_shards(directory, parts):
    index = {}
    for number, part in enumerate(parts):
        name = f"model-{number}.safetensors"
        save_file(part, directory / name)
        index |= dict.fromkeys(part, name)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))


def load(directory, size=1, rank=0, dtype=torch.float32, **options):
    module = Fused(size)
    parallel = TensorParallel(rank=rank, size=size)
    load_weights(module, Weights.open(directory), NAMES, device=CPU, dtype=dtype, parallel=parallel, **options)
    return module


def test_shards_are_found_by_their_index_and_pieces_lie_one_below_the_other(tmp_path):
    source = tensors()
    write_shards(tmp_path, [{"q": source["q"], "n": source["n"]}, {"k": source["k"], "o": source["o"]}])
    module = load(tmp_path)
    assert torch.equal(module.fused, torch.cat([source["q"], source["k"]]))
    assert torch.equal(module.out.weight, source["o"])


def test_each_rank_takes_its_share_of_every_piece(tmp_path):
    source = tensors()
    save_file(source, tmp_path / "model.safetensors")
    second = load(tmp_path, size=2, rank=1)
    assert torch.equal(second.fused, torch.cat([source["q"][4:], source["k"][2:]]))
    assert torch.equal(second.out.weight, source["o"][:, 4:])
    assert torch.equal(second.norm, source["n"])


def test_weights_are_converted_to_the_dtype_asked_for(tmp_path):
    source = tensors()
    save_file(source, tmp_path / "model.safetensors")
    module = load(tmp_path, dtype=torch.bfloat16)
    assert torch.equal(module.out.weight, source["o"].bfloat16())


def test_every_missing_misshapen_and_unexpected_tensor_is_listed_at_once(tmp_path):
    source = tensors()
    save_file(
        {"q": torch.zeros(7, 8), "k": source["k"], "n": source["n"], "stray": torch.zeros(8)},
        tmp_path / "model.safetensors",
    )
    with pytest.raises(CheckpointError) as raised:
        load(tmp_path)
    listed = [line for line in str(raised.value).splitlines() if line.startswith("  - ")]
    assert sorted(line.split()[1] for line in listed) == ["o", "q", "stray"]


def test_ignored_prefixes_may_be_left_over(tmp_path):
    save_file(tensors() | {"vision.a": torch.zeros(1), "vision.b": torch.zeros(1)}, tmp_path / "model.safetensors")
    load(tmp_path, ignore=("vision.",))
    with pytest.raises(CheckpointError, match=r"vision\.b is not part of the model"):
        load(tmp_path, ignore=("vision.a",))


class Mixture(nn.Module):
    """Four experts' fused weights, whose halves are published one by one."""

    def __init__(self):
        super().__init__()
        self.gate_up = nn.Parameter(torch.empty(4, 6, 8, device="meta"))


MIXTURE = {"gate_up": [Piece(f"{expert}.{part}") for expert in range(4) for part in ("gate", "up")]}


def load_mixture(directory):
    module = Mixture()
    load_weights(module, Weights.open(directory), MIXTURE, device=CPU, dtype=torch.float32)
    return module


def test_pieces_with_fewer_axes_fill_the_first_axes_of_a_parameter(tmp_path):
    source = {piece.name: torch.randn(3, 8) for piece in MIXTURE["gate_up"]}
    first = {name: value for name, value in source.items() if name[0] in "02"}
    write_shards(tmp_path, [first, {name: source[name] for name in source.keys() - first.keys()}])
    module = load_mixture(tmp_path)
    for expert in range(4):
        assert torch.equal(module.gate_up[expert], torch.cat([source[f"{expert}.gate"], source[f"{expert}.up"]]))


def test_a_misshapen_piece_of_many_is_refused_with_the_shape_that_is_needed(tmp_path):
    source = {piece.name: torch.randn(3, 8) for piece in MIXTURE["gate_up"]} | {"3.up": torch.randn(2, 8)}
    save_file(source, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"0\.gate \[3, 8\].*3\.up \[2, 8\]: the model needs \[4, 6, 8\]"):
        load_mixture(tmp_path)


def test_a_file_is_read_in_runs_of_a_bounded_size(tmp_path, monkeypatch):
    monkeypatch.setattr("mstar_core.engines.weights._RUN", 200)
    source = {piece.name: torch.randn(3, 8) for piece in MIXTURE["gate_up"]}
    save_file(source, tmp_path / "model.safetensors")
    assert torch.equal(load_mixture(tmp_path).gate_up[3, :3], source["3.gate"])


def test_each_module_is_handed_over_once_filled_the_largest_first(tmp_path):
    save_file(tensors(), tmp_path / "model.safetensors")
    seen = []
    load(tmp_path, filled=lambda module: seen.append((type(module), {p.is_meta for p in module.parameters(False)})))
    assert seen == [(Fused, {False}), (nn.Linear, {False})]


def test_a_directory_without_weights_a_broken_index_and_a_missing_shard_are_refused(tmp_path):
    with pytest.raises(CheckpointError, match="neither model"):
        Weights.open(tmp_path)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text('{"metadata": {}}')
    with pytest.raises(CheckpointError, match="no index of shards"):
        Weights.open(tmp_path)
    index.write_text('{"weight_map": {"q": "gone.safetensors"}}')
    with pytest.raises(CheckpointError, match="gone"):
        Weights.open(tmp_path)
