import subprocess
import sys

import pytest
import torch
from torch import nn

from mstar_core.engines.torch_archive import ArchiveWeights
from mstar_core.engines.weights import Piece, load_weights
from mstar_core.errors import CheckpointError

EVERYTHING = (slice(None), slice(None))


def save(path, **sections):
    torch.save(sections, path)
    return path


def test_tensors_are_read_as_they_were_saved_whatever_their_type(tmp_path):
    tensors = {str(dtype): torch.randn(3, 5).to(dtype) for dtype in (torch.float32, torch.bfloat16, torch.float16)}
    weights = ArchiveWeights.open_section(save(tmp_path / "a.pt", model=tensors, epoch=3, other=None), "model")
    assert weights.shapes == dict.fromkeys(tensors, (3, 5))
    for name, tensor in tensors.items():
        place = torch.empty(2, 5, dtype=tensor.dtype)
        weights.read_into(place, name, (slice(1, 3), slice(None)))
        assert torch.equal(place, tensor[1:])


def test_tensors_that_share_a_storage_are_read_from_their_places(tmp_path):
    whole = torch.arange(12.0).view(4, 3)
    path = save(tmp_path / "a.pt", model={"upper": whole[:2], "lower": whole[2:]})
    place = torch.empty(2, 3)
    ArchiveWeights.open_section(path, "model").read_into(place, "lower", EVERYTHING)
    assert torch.equal(place, whole[2:])


def test_a_module_is_filled_by_renamed_tensors(tmp_path):
    layer = nn.Linear(3, 2, device="meta")
    tensors = {"module.w": torch.randn(2, 3), "module.b": torch.randn(2)}
    weights = ArchiveWeights.open_section(
        save(tmp_path / "a.pt", model=tensors), "model", lambda name: name.removeprefix("module.")
    )
    names = {"weight": [Piece("w")], "bias": [Piece("b")]}
    load_weights(layer, weights, names, device=torch.device("cpu"), dtype=torch.float32)
    assert torch.equal(layer.weight, tensors["module.w"])


def test_code_in_a_file_is_not_run(tmp_path):
    path = tmp_path / "a.pt"
    torch.save({"model": {"w": print}}, path)
    with pytest.raises(CheckpointError, match=r"a\.pt: cannot be read as a file of tensors"):
        ArchiveWeights.open_section(path, "model")


@pytest.mark.parametrize("content", [b"", b"no archive at all"])
def test_a_file_that_is_none_is_reported(tmp_path, content):
    (tmp_path / "a.pt").write_bytes(content)
    with pytest.raises(CheckpointError, match="cannot be read"):
        ArchiveWeights.open_section(tmp_path / "a.pt", "model")


def test_a_missing_section_is_reported_with_those_there_are(tmp_path):
    with pytest.raises(CheckpointError, match=r"no dictionary 'model' in it \(found: encoder, epoch\)"):
        ArchiveWeights.open_section(save(tmp_path / "a.pt", encoder={}, epoch=1), "model")


def test_two_tensors_of_one_name_are_reported(tmp_path):
    path = save(tmp_path / "a.pt", model={"a.w": torch.zeros(1), "b.w": torch.zeros(1)})
    with pytest.raises(CheckpointError, match="two tensors for 'w'"):
        ArchiveWeights.open_section(path, "model", lambda name: name[2:])


def test_what_is_no_tensor_is_reported(tmp_path):
    with pytest.raises(CheckpointError, match="'w' in 'model' is no contiguous tensor"):
        ArchiveWeights.open_section(save(tmp_path / "a.pt", model={"w": 3}), "model")


MEASURED = """
import sys
from pathlib import Path
import torch
from torch import nn
from mstar_core.engines.torch_archive import ArchiveWeights
from mstar_core.engines.weights import Piece, load_weights
from mstar_core.nn.linear import Linear, pack

def resident(kind):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(kind)) * 1024

torch.ops.mkldnn._reorder_linear_weight(torch.randn(64, 64), 16)
ArchiveWeights.open_section(Path(sys.argv[1]).with_name("small.pt"), "model")  # what torch imports for it
Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
before = resident("VmRSS")
with torch.device("meta"):
    model = nn.ModuleList(Linear(1024, [1024]) for _ in range(48))
names = {f"{layer}.weight": [Piece(f"layers.{layer}")] for layer in range(48)}
weights = ArchiveWeights.open_section(Path(sys.argv[1]), "model")
load_weights(model, weights, names, device=torch.device("cpu"), dtype=torch.float32, filled=pack)
print(resident("VmHWM") - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_loading_takes_at_most_a_tenth_more_memory_than_the_weights(tmp_path):
    tensors = {f"layers.{layer}": torch.zeros(1024, 1024) for layer in range(48)}
    path = save(tmp_path / "a.pt", model=tensors, opt={"state": torch.zeros(1024, 1024)})
    save(tmp_path / "small.pt", model={})
    result = subprocess.run([sys.executable, "-c", MEASURED, str(path)], check=False, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) <= 1.1 * sum(each.nbytes for each in tensors.values())
