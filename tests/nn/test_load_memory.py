import json
import subprocess
import sys

import pytest
import torch
from safetensors.torch import save_file

MEASURED = """
import sys
from pathlib import Path
import torch
from mstar_core.nn.llama import load_llama
from mstar_core.nn.llama_config import LlamaConfig

def resident(kind):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(kind)) * 1024

directory = Path(sys.argv[1])
config = LlamaConfig.read(directory)
torch.ops.mkldnn._reorder_linear_weight(torch.randn(64, 64).bfloat16(), 16)
Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
before = resident("VmRSS")
load_llama(directory, config, device=torch.device("cpu"), dtype=torch.bfloat16)
print(resident("VmHWM") - before)
"""

MEASURED_MIXTURES = """
import sys
from pathlib import Path
import torch
from mstar_core.engines.weights import Weights, load_weights
from mstar_core.nn.linear import pack
from mstar_core.nn.moe import MixtureOfExperts, moe_names

def resident(kind):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(kind)) * 1024

layers, experts, hidden, width = map(int, sys.argv[2:])
torch.ops.mkldnn._reorder_linear_weight(torch.randn(64, 64).bfloat16(), 16)
Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
before = resident("VmRSS")
with torch.device("meta"):
    model = torch.nn.ModuleList(
        MixtureOfExperts(hidden, experts, 2, width, normalised=True) for _ in range(layers)
    )
names = {}
for layer in range(layers):
    names |= moe_names(f"{layer}", f"layers.{layer}.mlp", experts)
weights = Weights.open(Path(sys.argv[1]))
load_weights(model, weights, names, device=torch.device("cpu"), dtype=torch.bfloat16, filled=pack)
print(resident("VmHWM") - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_loading_takes_at_most_a_tenth_more_memory_than_the_weights(tmp_path):
    hidden, width, vocab, layers = 768, 2048, 24000, 12
    head = torch.zeros(vocab, hidden, dtype=torch.bfloat16)
    source = {"model.embed_tokens.weight": head, "lm_head.weight": head.clone(), "model.norm.weight": head[0].clone()}
    square, tall = head[:hidden], head[:width]
    for layer in range(layers):
        names = {"self_attn.q_proj": square, "self_attn.k_proj": square[:256], "self_attn.v_proj": square[:256]}
        names |= {"self_attn.o_proj": square, "mlp.gate_proj": tall, "mlp.up_proj": tall, "mlp.down_proj": tall.T}
        names |= {"input_layernorm": head[0], "post_attention_layernorm": head[0]}
        source |= {f"model.layers.{layer}.{name}.weight": each.clone().contiguous() for name, each in names.items()}
    save_file(source, tmp_path / "model.safetensors")
    size = sum(each.nbytes for each in source.values())
    values = {"model_type": "llama", "num_hidden_layers": layers, "hidden_size": hidden, "intermediate_size": width}
    values |= {"num_attention_heads": 12, "num_key_value_heads": 4, "vocab_size": vocab, "rope_theta": 10000.0}
    values |= {"max_position_embeddings": 2048, "rms_norm_eps": 1e-5}
    (tmp_path / "config.json").write_text(json.dumps(values))
    del source, head, square, tall
    result = subprocess.run(
        [sys.executable, "-c", MEASURED, str(tmp_path)], check=False, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    assert size > 190 * 2**20
    assert int(result.stdout) <= 1.1 * size


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_experts_become_fused_weights_in_at_most_a_tenth_more_memory(tmp_path):
    layers, experts, hidden, width = 3, 64, 512, 384
    tall = torch.zeros(width, hidden, dtype=torch.bfloat16)
    source = {}
    for layer in range(layers):
        source[f"layers.{layer}.mlp.gate.weight"] = tall[:experts].clone()
        for expert in range(experts):
            names = {"gate_proj": tall, "up_proj": tall, "down_proj": tall.T}
            prefix = f"layers.{layer}.mlp.experts.{expert}"
            source |= {f"{prefix}.{name}.weight": each.clone().contiguous() for name, each in names.items()}
    save_file(source, tmp_path / "model.safetensors")
    size = sum(each.nbytes for each in source.values())
    del source
    arguments = [str(number) for number in (layers, experts, hidden, width)]
    result = subprocess.run(
        [sys.executable, "-c", MEASURED_MIXTURES, str(tmp_path), *arguments],
        check=False,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    assert size > 190 * 2**20
    assert int(result.stdout) <= 1.1 * size
