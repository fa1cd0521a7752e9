import json
import shutil

import pytest
import torch
from mstar_bagel.vision.nodes import LatentDecoder, LatentEncoder, VisionEncoder
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from mstar_core.errors import CheckpointError


@pytest.fixture
def copy(tmp_path, tiny):
    """A copy of the bundled checkpoint that a test may break."""
    return shutil.copytree(tiny, tmp_path / "copy")


def rewrite(directory, file, change):
    tensors = load_file(directory / file)
    change(tensors)
    save_file(tensors, directory / file)


@pytest.mark.parametrize(
    ("factory", "file", "name", "shape"),
    [
        (VisionEncoder, "ema.safetensors", "connector.fc1.weight", [64, 32]),
        (LatentEncoder, "ae.safetensors", "encoder.mid.attn_1.k.weight", [32, 32, 1, 1]),
        (LatentDecoder, "ae.safetensors", "decoder.up.3.upsample.conv.weight", [32, 32, 3, 3]),
    ],
)
def test_a_misshapen_tensor_is_named_with_both_shapes(copy, context, factory, file, name, shape):
    def spoil(tensors):
        tensors[name] = torch.zeros(shape[0], shape[1] + 1, *shape[2:])

    rewrite(copy, file, spoil)
    with pytest.raises(CheckpointError, match=name):
        factory(context(copy))


def test_missing_and_unknown_tensors_of_a_part_are_listed_together(copy, context):
    def spoil(tensors):
        del tensors["decoder.conv_in.bias"]
        tensors["decoder.extra"] = torch.zeros(1)

    rewrite(copy, "ae.safetensors", spoil)
    with pytest.raises(CheckpointError) as caught:
        LatentDecoder(context(copy))
    assert "decoder.conv_in.bias is missing" in str(caught.value)
    assert "decoder.extra is not part of the model" in str(caught.value)
    LatentEncoder(context(copy))


def test_the_bundled_checkpoint_has_the_published_layout(tiny):
    files = json.loads((tiny / "model.safetensors.index.json").read_text())["weight_map"]
    assert set(files.values()) == {"ema.safetensors", "ae.safetensors"}
    assert all(files[name] == file for file in set(files.values()) for name in load_file(tiny / file))


def test_the_bundled_tokenizer_keeps_any_text_and_knows_the_special_tokens(tiny):
    tokenizer = Tokenizer.from_file(str(tiny / "tokenizer.json"))
    text = "Ein Käfer 🐞\n <think> so </think>"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert tokenizer.encode("<|im_start|>a<|vision_end|>").ids[::2] == [257, 260]
