import pytest
import torch
import torch.nn.functional as F


class OneSequence:
    """A step of one sequence from its start, without a cache: plain causal attention over its own tokens."""

    def __init__(self, positions):
        self.positions = positions

    def attend(self, layer, queries, keys, values, scale=None):
        queries, keys, values = (each.transpose(0, 1)[None] for each in (queries, keys, values))
        attended = F.scaled_dot_product_attention(
            queries, keys, values, is_causal=True, scale=scale, enable_gqa=queries.shape[1] != keys.shape[1]
        )
        return attended[0].transpose(0, 1)


@pytest.fixture
def one_sequence():
    return lambda tokens: OneSequence(torch.arange(tokens))


@pytest.fixture
def write_llama(tmp_path):
    """Writes a checkpoint of random weights for a config's values; returns its directory."""

    def write(values, dtype=torch.float32):
        from transformers import LlamaConfig, LlamaForCausalLM

        torch.manual_seed(0)
        LlamaForCausalLM(LlamaConfig(**values)).to(dtype).save_pretrained(tmp_path)
        return tmp_path

    return write


@pytest.fixture
def small():
    return {
        "vocab_size": 97,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 256,
        "tie_word_embeddings": False,
    }
