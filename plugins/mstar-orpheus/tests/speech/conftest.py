"""Language models that say what a test wants: each id is followed by the one that a table names."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from mstar_orpheus.config import OrpheusConfig
from safetensors.torch import save_file

HIDDEN = 256


@pytest.fixture(scope="session")
def layout(fixture_dir) -> OrpheusConfig:
    """Ids and codec of the scripted checkpoints."""
    return OrpheusConfig.read(fixture_dir)


@pytest.fixture(scope="session")
def ids_of(layout) -> Callable[[Iterable[Iterable[int]]], list[int]]:
    """The audio ids of frames of seven codes."""

    def ids(frames: Iterable[Iterable[int]]) -> list[int]:
        return [layout.ids.audio + slot * 64 + code for frame in frames for slot, code in enumerate(frame)]

    return ids


@pytest.fixture
def saying(tmp_path, fixture_dir, layout) -> Callable[..., Path]:
    """Makes a checkpoint that says these ids, each of them once at most, in their order.

    `rivals` adds pairs of an id and one that may follow it, with their weights; the ids' own pairs weigh 1.
    """

    def make(ids: list[int], rivals: Mapping[tuple[int, int], float] | None = None) -> Path:
        assert len(set(ids)) == len(ids)
        path = [layout.ids.start_of_speech, *ids]
        pairs = dict.fromkeys(pairwise(path), 1.0) | dict(rivals or {})
        return write_bigrams(tmp_path / str(len(list(tmp_path.iterdir()))), fixture_dir, pairs)

    return make


def write_bigrams(target: Path, source: Path, pairs: Mapping[tuple[int, int], float]) -> Path:
    """One block whose outputs are zero: the hidden state is the last id's embedding, and the head a table of pairs."""
    config = json.loads((source / "llm" / "config.json").read_text())
    config |= {"hidden_size": HIDDEN, "num_hidden_layers": 1, "tie_word_embeddings": False}
    vocab, mlp, heads = config["vocab_size"], config["intermediate_size"], config["head_dim"]
    generator = torch.Generator().manual_seed(0)
    embedding = torch.randn(vocab, HIDDEN, generator=generator)
    head = torch.zeros(vocab, HIDDEN)
    for (before, after), weight in pairs.items():
        head[after] += weight * embedding[before]
    block = "model.layers.0"
    shapes = {
        f"{block}.self_attn.q_proj": (config["num_attention_heads"] * heads, HIDDEN),
        f"{block}.self_attn.k_proj": (config["num_key_value_heads"] * heads, HIDDEN),
        f"{block}.self_attn.v_proj": (config["num_key_value_heads"] * heads, HIDDEN),
        f"{block}.self_attn.o_proj": (HIDDEN, config["num_attention_heads"] * heads),
        f"{block}.mlp.gate_proj": (mlp, HIDDEN),
        f"{block}.mlp.up_proj": (mlp, HIDDEN),
        f"{block}.mlp.down_proj": (HIDDEN, mlp),
    }
    norms = ("model.norm", f"{block}.input_layernorm", f"{block}.post_attention_layernorm")
    tensors = {f"{name}.weight": torch.zeros(shape) for name, shape in shapes.items()}
    tensors |= {f"{name}.weight": torch.ones(HIDDEN) for name in norms}
    tensors |= {"model.embed_tokens.weight": embedding, "lm_head.weight": head}
    (target / "llm").mkdir(parents=True)
    (target / "llm" / "config.json").write_text(json.dumps(config))
    save_file(tensors, target / "llm" / "model.safetensors")
    shutil.copy(source / "llm" / "tokenizer.json", target / "llm")
    shutil.copytree(source / "snac", target / "snac")
    return target
