import pytest
import torch
from mstar_orpheus.codec.config import SnacConfig
from mstar_orpheus.codec.decoder import SnacDecoder
from mstar_orpheus.codec.weights import SnacWeightsError, fold_weight_norm, read_weights
from safetensors.torch import load_file, save_file


@pytest.fixture
def checkpoint(golden_dir, tmp_path):
    """A copy of the recorded checkpoint whose tensors a test may change."""
    (tmp_path / "config.json").write_text((golden_dir / "snac" / "config.json").read_text())
    return tmp_path, load_file(golden_dir / "snac" / "model.safetensors")


def read(directory):
    return read_weights(directory, SnacConfig.read(directory))


@pytest.mark.golden
def test_weights_of_normalised_layers_are_the_reference_s(golden_dir, cases):
    weights = read(golden_dir / "snac")
    recorded = {key: value for key, value in cases.items() if "effective_weight_" in key}
    assert recorded
    for key, expected in recorded.items():
        name = key.partition("effective_weight_")[2].removesuffix("_transposed").replace("_", ".")
        torch.testing.assert_close(weights[f"{name}.weight"], expected, atol=1e-6, rtol=1e-6)


@pytest.mark.golden
def test_weights_of_both_file_formats_are_the_same(golden_dir, tmp_path):
    for name in ("config.json", "pytorch_model.bin"):
        (tmp_path / name).write_bytes((golden_dir / "snac" / name).read_bytes())
    ours, theirs = read(tmp_path), read(golden_dir / "snac")
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert not any(name.startswith("encoder.") or ".in_proj." in name for name in ours)


@pytest.mark.golden
def test_weights_with_the_older_names_are_read(checkpoint, golden_dir):
    directory, tensors = checkpoint
    older = {
        name.replace("parametrizations.weight.original0", "weight_g").replace(
            "parametrizations.weight.original1", "weight_v"
        ): tensor
        for name, tensor in tensors.items()
    }
    torch.save(older, directory / "pytorch_model.bin")
    ours, theirs = read(directory), read(golden_dir / "snac")
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.golden
def test_weights_that_differ_are_all_listed_in_one_error(checkpoint):
    directory, tensors = checkpoint
    del tensors["decoder.model.0.bias"], tensors["decoder.model.1.parametrizations.weight.original0"]
    tensors["decoder.model.99.bias"] = torch.zeros(3)
    tensors["quantizer.quantizers.0.codebook.weight"] = torch.zeros(2, 2)
    save_file(tensors, directory / "model.safetensors")
    with pytest.raises(SnacWeightsError) as caught:
        read(directory)
    message = str(caught.value)
    assert "model.safetensors does not fit its config.json" in message
    for part in (
        "missing decoder.model.0.bias [",
        "missing decoder.model.1.weight [",
        "unknown decoder.model.1.parametrizations.weight.original1 [",
        "unknown decoder.model.99.bias [3]",
        "quantizer.quantizers.0.codebook.weight is [2, 2], [",
    ):
        assert part in message


@pytest.mark.golden
def test_weights_of_a_directory_without_any_name_the_files_looked_for(checkpoint):
    with pytest.raises(SnacWeightsError, match=r"model\.safetensors or pytorch_model\.bin was expected"):
        read(checkpoint[0])


def test_fold_of_half_precision_pairs_gives_float32():
    direction = torch.tensor([[[3.0, 4.0]], [[0.0, 2.0]]], dtype=torch.bfloat16)
    length = torch.tensor([10.0, 1.0], dtype=torch.bfloat16).view(2, 1, 1)
    folded = fold_weight_norm({"a.weight_g": length, "a.weight_v": direction, "a.bias": torch.ones(2)})
    assert folded.keys() == {"a.weight", "a.bias"}
    torch.testing.assert_close(folded["a.weight"], torch.tensor([[[6.0, 8.0]], [[0.0, 1.0]]]))


@pytest.mark.golden
def test_decoder_loads_in_the_asked_precision(golden_dir):
    decoder = SnacDecoder.load(golden_dir / "snac", dtype=torch.float64)
    assert {buffer.dtype for buffer in decoder.state_dict().values()} == {torch.float64}
