import json

import pytest
import torch
from transformers import LlamaConfig as ReferenceConfig
from transformers import LlamaForCausalLM

from mstar_core.engines.base import BatchLimits, Call, EngineSettings, NodeContext, NodeRequest
from mstar_core.engines.kv_cache import KVCacheEngine
from mstar_core.engines.kv_node import KVNode, token_count
from mstar_core.engines.segments import Segment
from mstar_core.errors import CheckpointError
from mstar_core.nn.llama import load_llama
from mstar_core.nn.llama_config import LlamaConfig
from mstar_core.spec.graph import Node, Port

CPU = torch.device("cpu")


class EveryLogit(KVNode):
    """Gives the logits at every position."""

    def __init__(self, model):
        self.model = model
        self.kv = model.kv

    def segments(self, call):
        return Segment(tokens=token_count(call.inputs["ids"]))

    def forward(self, step):
        return {"logits": step.split(self.model.logits(self.model(step.tokens("ids"), step)))}


def save_reference(directory, *, tied, scaled, dtype=torch.float32):
    torch.manual_seed(0)
    scaling = {
        "rope_type": "llama3",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    }
    config = ReferenceConfig(
        vocab_size=97,
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=256,
        rope_parameters=scaling if scaled else {"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=tied,
    )
    model = LlamaForCausalLM(config).to(dtype).eval()
    model.save_pretrained(directory)
    return model


def logits_of(directory, sequences, tokens=2048):
    model = load_llama(directory, LlamaConfig.read(directory), device=CPU, dtype=torch.float32)
    node = Node(
        name="lm",
        engine="kv_cache",
        inputs=(Port("ids", "int64", ("n",), tokens=0),),
        outputs=(Port("logits", "float32", ("n", "vocab")),),
        factory="unused:here",
    )
    context = NodeContext(node=node, config=None, checkpoint=directory, device=CPU, dtype=torch.float32)
    engine = KVCacheEngine.build(EveryLogit(model), context, EngineSettings(kv_tokens=1024))
    calls = []
    for key, ids in enumerate(sequences, 1):
        request = NodeRequest(key, {}, 0)
        engine.open(request)
        calls.append(Call(request, "walk", {"ids": torch.tensor(ids)}, 0))
    results, waiting = {}, list(calls)
    while waiting:
        batch = engine.collect("walk", waiting, BatchLimits(tokens=tokens))
        engine.run(batch)
        for call, outcome in zip(batch.calls, engine.finish(batch), strict=True):
            if outcome is not None:
                results[call] = outcome["logits"].tensor()
                waiting.remove(call)
    return [results[call] for call in calls]


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("scaled", [True, False])
def test_logits_equal_the_reference_at_every_position(tmp_path, tied, scaled):
    reference = save_reference(tmp_path, tied=tied, scaled=scaled)
    sequences = [[(7 * place + row) % 97 for place in range(40 + 9 * row)] for row in range(3)]
    for ids, logits in zip(sequences, logits_of(tmp_path, sequences), strict=True):
        with torch.inference_mode():
            expected = reference(torch.tensor([ids])).logits[0]
        torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)


def test_logits_of_a_cut_prefill_beside_others_are_those_of_the_whole_one(tmp_path):
    save_reference(tmp_path, tied=True, scaled=True)
    sequences = [[(5 * place + row) % 97 for place in range(30)] for row in range(4)]
    whole = [logits_of(tmp_path, [ids])[0] for ids in sequences]
    for cut, expected in zip(logits_of(tmp_path, sequences, tokens=17), whole, strict=True):
        torch.testing.assert_close(cut, expected, atol=1e-5, rtol=1e-5)


def test_both_spellings_of_the_config_are_one(tmp_path):
    save_reference(tmp_path, tied=True, scaled=True)
    new = LlamaConfig.read(tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    rope = values.pop("rope_parameters")
    values["rope_theta"] = rope.pop("rope_theta")
    values["rope_scaling"] = rope
    assert LlamaConfig.parse(values) == new


def test_a_checkpoint_that_does_not_fit_is_refused_with_every_tensor_named(tmp_path):
    save_reference(tmp_path, tied=False, scaled=False)
    values = json.loads((tmp_path / "config.json").read_text())
    config = LlamaConfig.parse(values | {"num_hidden_layers": 3, "intermediate_size": 96})
    with pytest.raises(CheckpointError) as raised:
        load_llama(tmp_path, config, device=CPU, dtype=torch.float32)
    assert "model.layers.2.mlp.down_proj.weight is missing" in str(raised.value)
    assert "model.layers.0.mlp.down_proj.weight [48, 80]: the model needs [48, 96]" in str(raised.value)
    fewer = LlamaConfig.parse(values | {"num_hidden_layers": 1})
    with pytest.raises(CheckpointError, match=r"model\.layers\.1\.mlp\.up_proj\.weight is not part of the model"):
        load_llama(tmp_path, fewer, device=CPU, dtype=torch.float32)


@pytest.mark.parametrize("change", [{"model_type": "gpt2"}, {"attention_bias": True}])
def test_a_config_that_is_not_supported_is_refused(tmp_path, change):
    save_reference(tmp_path, tied=True, scaled=False)
    values = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(values | change))
    with pytest.raises(CheckpointError, match=r"config\.json"):
        LlamaConfig.read(tmp_path)
