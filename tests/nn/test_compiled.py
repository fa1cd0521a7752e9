import shutil

import pytest
import torch

from mstar_core.nn.linear import Linear, pack
from mstar_core.nn.llama import load_llama
from mstar_core.nn.llama_config import LlamaConfig
from mstar_core.nn.norm import RMSNorm

CPU = torch.device("cpu")


@pytest.mark.filterwarnings("default")  # the compiler's own
@pytest.mark.skipif(shutil.which("c++") is None, reason="Inductor needs a C++ compiler")
@torch.inference_mode()
def test_compiled_code_calls_packed_layers_and_gives_the_eager_result():
    norm, layer = RMSNorm(32, 1e-5), Linear(32, [48])
    norm.weight.data, layer.weight.data = torch.rand(32), torch.randn(48, 32)
    pack(layer)
    compiled = torch.compile(lambda x: layer(norm(x)) * 2, fullgraph=True)
    for rows in (1, 5):
        x = torch.randn(rows, 32)
        torch.testing.assert_close(compiled(x), layer(norm(x)) * 2)


@pytest.mark.filterwarnings("default")
@torch.inference_mode()
def test_a_whole_model_is_one_graph(write_llama, small, one_sequence):
    directory = write_llama(small)
    model = load_llama(directory, LlamaConfig.read(directory), device=CPU, dtype=torch.float32)
    step, ids = one_sequence(9), torch.arange(9)
    compiled = torch.compile(lambda given: model.logits(model(given, step)), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(ids), model.logits(model(ids, step)))
