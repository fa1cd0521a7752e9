"""Llama decode beside transformers' `generate`, on one machine, in alternating rounds.

    python benchmarks/llama_decode.py [--batches 1,4,16] [--rounds 5] [--threads 2] [--uncompiled] [--json FILE]

The model is the "mid" configuration with random bfloat16 weights: 12 layers, hidden 768, 12 heads on 4 key heads, MLP
2048, 32,000 ids, untied head; 191 MiB are read per step. Prompts have 64 ids, every request decodes greedily. A
round times, for each peer in turn, a long and a one-token generation of the same prompts; their difference is decoding
alone. Steps are compiled, as they are by default on a CPU. Absolute numbers drift on shared machines: only ratios
within a run mean something.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from mid_plugin import MidPlugin
from rich.console import Console
from rich.table import Table
from safetensors.torch import save_file

from mstar_core.client.engine import Engine
from mstar_core.engines.base import BatchLimits, Call, EngineSettings, NodeContext, NodeRequest
from mstar_core.engines.build import CORE_ENGINES, build_engine
from mstar_core.engines.kv_node import KVNode, token_count
from mstar_core.engines.sampling import SamplerSpec
from mstar_core.engines.segments import Segment
from mstar_core.nn.llama import load_llama
from mstar_core.nn.llama_config import LlamaConfig
from mstar_core.spec.content import Tensor
from mstar_core.spec.graph import FLAG, Node, Port
from mstar_core.spec.placement import KVPlace, NodeGroup, Placement
from mstar_core.testing.plugins import registry_with

PROMPT = 64
CPU = torch.device("cpu")

MID = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 32000,
    "hidden_size": 768,
    "intermediate_size": 2048,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
}


def write_mid_checkpoint(directory: Path) -> None:
    """A checkpoint of the mid configuration with normal weights of deviation 0.02, in Hugging Face's layout."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return (torch.randn(shape, generator=generator) * 0.02).bfloat16()

    hidden, heads, kv, mlp = 768, 12 * 64, 4 * 64, 2048
    tensors = {
        "model.embed_tokens.weight": random(32000, hidden),
        "lm_head.weight": random(32000, hidden),
        "model.norm.weight": torch.ones(hidden).bfloat16(),
    }
    for layer in range(MID["num_hidden_layers"]):  # type: ignore[call-overload]
        name = f"model.layers.{layer}"
        for part, shape in {
            "self_attn.q_proj": (heads, hidden),
            "self_attn.k_proj": (kv, hidden),
            "self_attn.v_proj": (kv, hidden),
            "self_attn.o_proj": (hidden, heads),
            "mlp.gate_proj": (mlp, hidden),
            "mlp.up_proj": (mlp, hidden),
            "mlp.down_proj": (hidden, mlp),
        }.items():
            tensors[f"{name}.{part}.weight"] = random(*shape)
        for part in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{name}.{part}.weight"] = torch.ones(hidden).bfloat16()
    save_file(tensors, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(MID))


def prompts(batch: int) -> list[list[int]]:
    """The same prompts for every peer and round."""
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 32000, (batch, PROMPT), generator=generator).tolist()


class Peer(Protocol):
    """Something that generates: `new` ids after each prompt, together."""

    name: str

    def generate(self, prompts: Sequence[Sequence[int]], new: int) -> list[list[int]]:
        """The new ids of each prompt."""


class TransformersPeer:
    """transformers' `generate` with its default, dynamic cache, greedy."""

    def __init__(self, directory: Path) -> None:
        from transformers import AutoModelForCausalLM

        self.name = "transformers"
        self._model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.bfloat16).eval()

    def generate(self, prompts: Sequence[Sequence[int]], new: int) -> list[list[int]]:
        """The new ids of each prompt."""
        ids = torch.tensor(prompts)
        with torch.inference_mode(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            out = self._model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                min_new_tokens=new,
                max_new_tokens=new,
                do_sample=False,
                pad_token_id=0,
                eos_token_id=None,
            )
        rows: list[list[int]] = out[:, ids.shape[1] :].tolist()
        return rows


class DecodeNode(KVNode):
    """A Llama that samples one id per call."""

    host_outputs = ("ids",)
    run_ahead = ("ids",)

    def __init__(self, context: NodeContext) -> None:
        config = LlamaConfig.read(context.checkpoint)
        self.model = load_llama(context.checkpoint, config, device=context.device, dtype=context.dtype)
        self.kv = self.model.kv
        self.samplers = {"main": SamplerSpec(vocab=config.vocab, temperature="temperature")}

    def segments(self, call: Call) -> Segment:
        """All ids of the input, one after the other."""
        return Segment(tokens=token_count(call.inputs["ids"]))

    def forward(self, step):  # type: ignore[no-untyped-def]
        """The next id of every call."""
        hidden = self.model(step.tokens("ids"), step)
        return {"ids": step.sample(self.model.logits(step.last(hidden)), "main")}


class EnginePeer:
    """The KV cache engine by itself: collect, run and finish in turn, with sampling and paging, without a worker."""

    def __init__(self, directory: Path, *, compiled: bool = True, temperature: float = 0.0) -> None:
        self.name = "engine" if compiled else "engine, not compiled"
        self._params = {"temperature": temperature}
        self._keys = iter(range(1, 1 << 30))
        node = Node(
            name="lm",
            engine="kv_cache",
            inputs=(Port("ids", "int64", ("n",), tokens=0),),
            outputs=(Port("ids", "int64", ()), Port("stop", FLAG)),
            factory=DecodeNode,
        )
        context = NodeContext(node=node, config=None, checkpoint=directory, device=CPU, dtype=torch.bfloat16)
        settings = EngineSettings(kv_tokens=16384, page_tokens=16, compile=compiled)
        self.engine = build_engine(CORE_ENGINES["kv_cache"], context, settings)

    def generate(self, prompts: Sequence[Sequence[int]], new: int) -> list[list[int]]:
        """The new ids of each prompt."""
        requests = [NodeRequest(next(self._keys), self._params, seed) for seed in range(len(prompts))]
        for request in requests:
            self.engine.open(request)
        inputs: list[object] = [torch.tensor(prompt) for prompt in prompts]
        written: list[list[int]] = [[] for _ in prompts]
        for step in range(new):
            calls = [
                Call(request, "walk", {"ids": value}, step) for request, value in zip(requests, inputs, strict=True)
            ]
            inputs = self._round(calls, written)
        for request in requests:
            self.engine.close(request)
        return written

    def _round(self, calls: list[Call], written: list[list[int]]) -> list[object]:
        outputs: dict[int, object] = {}
        waiting = list(calls)
        while waiting:
            batch = self.engine.collect("walk", waiting, BatchLimits(requests=64, tokens=2048))
            assert batch is not None
            self.engine.run(batch)
            for index, (call, outcome) in enumerate(zip(batch.calls, self.engine.finish(batch), strict=True)):
                if outcome is None:
                    continue
                if isinstance(outcome, Exception):
                    raise outcome
                place = calls.index(call)
                outputs[place] = outcome["ids"]
                written[place].append(batch.host["ids"][index])  # type: ignore[attr-defined]
                waiting.remove(call)
        return [outputs[place] for place in range(len(calls))]


class ServedNode(DecodeNode):
    """The same model inside a worker: the host looks at every id, as it does for a stop id."""

    def finish(self, call: Call, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """No id ends the request: the count is fixed."""
        return {"stop": row["ids"] < 0}


class SystemPeer:
    """The whole system in one process, from `Engine` to the device thread; every id reaches the caller at once."""

    def __init__(self, directory: Path, *, compiled: bool = True) -> None:
        self.name = "whole system" if compiled else "whole system, not compiled"
        kv = KVPlace(tokens=16384, page=16)
        placement = Placement(groups=(NodeGroup(nodes=("lm",), compile=compiled, kv=kv),))
        registry = registry_with(MidPlugin(ServedNode))
        self.engine = Engine("mid", checkpoint=directory, placement=placement, registry=registry)

    def generate(self, prompts: Sequence[Sequence[int]], new: int) -> list[list[int]]:
        """The new ids of each prompt."""
        tickets = [
            self.engine.submit(Tensor("prompt", np.array(prompt)), new=new + 1, seed=seed)
            for seed, prompt in enumerate(prompts)
        ]
        return [[int(content.array) for content in ticket] for ticket in tickets]


@dataclass(frozen=True, slots=True)
class Measured:
    """One peer at one batch size: medians over rounds of milliseconds per decode step, wall and CPU."""

    peer: str
    batch: int
    milliseconds: float
    cpu_milliseconds: float
    tokens_per_second: float


def decode_times(peer: Peer, batch: int, new: int) -> tuple[float, float]:
    """Wall and CPU seconds per decode step: a long generation minus one of a single token."""
    times = []
    for count in (1, 1 + new):
        wall, cpu = time.perf_counter(), time.process_time()
        peer.generate(prompts(batch), count)
        times.append((time.perf_counter() - wall, time.process_time() - cpu))
    (short, short_cpu), (long, long_cpu) = times
    return (long - short) / new, (long_cpu - short_cpu) / new


def measure(peers: Sequence[Peer], batches: Sequence[int], rounds: int, new: int) -> list[Measured]:
    """Every peer at every batch size, the peers alternating within each round after one round to warm up."""
    results = []
    for batch in batches:
        taken: dict[str, list[tuple[float, float]]] = {peer.name: [] for peer in peers}
        for peer in peers:
            decode_times(peer, batch, 8)
        for _ in range(rounds):
            for peer in peers:
                taken[peer.name].append(decode_times(peer, batch, new))
        for name, pairs in taken.items():
            wall = statistics.median(wall for wall, _ in pairs)
            cpu = statistics.median(cpu for _, cpu in pairs)
            results.append(Measured(name, batch, wall * 1e3, cpu * 1e3, batch / wall))
    return results


def table(results: Sequence[Measured], base: str) -> Table:
    """The results beside the peer called `base`."""
    reference = {each.batch: each for each in results if each.peer == base}
    shown = Table(
        "peer", "batch", "ms/step", "CPU ms/step", "tokens/s", f"x {base}", title="Llama decode, mid configuration"
    )
    for each in results:
        ratio = reference[each.batch].milliseconds / each.milliseconds
        shown.add_row(
            each.peer,
            str(each.batch),
            f"{each.milliseconds:.2f}",
            f"{each.cpu_milliseconds:.2f}",
            f"{each.tokens_per_second:.0f}",
            f"{ratio:.2f}",
        )
    return shown


def main() -> None:
    """Measure and print; write JSON when asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", default="1,4,16")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--new", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--uncompiled", action="store_true", help="also measure without compiled steps")
    parser.add_argument("--json", type=Path, default=Path(__file__).parent / "results" / "llama_decode.json")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        write_mid_checkpoint(directory)
        peers: list[Peer] = [TransformersPeer(directory), EnginePeer(directory)]
        peers.append(SystemPeer(directory))
        if arguments.uncompiled:
            peers += [EnginePeer(directory, compiled=False), SystemPeer(directory, compiled=False)]
        batches = [int(each) for each in arguments.batches.split(",")]
        results = measure(peers, batches, arguments.rounds, arguments.new)
    Console().print(table(results, "transformers"))
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps([asdict(each) for each in results], indent=2) + "\n")


if __name__ == "__main__":
    main()
