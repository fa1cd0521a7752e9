"""Text in, speech out: Qwen3-Omni beside transformers' own `generate`, on one machine, in alternating rounds.

    python benchmarks/omni_speech.py [--sizes tiny,mid] [--batches 1,4,16] [--rounds 3] [--frames 40] [--json FILE]

*tiny* has the sizes of the plugin's recorded checkpoint. *mid* has a thinker of hidden 512, 6 layers, 16 experts of which
4 work on a token; a talker of hidden 384 and 4 layers; a code predictor of 3 layers for 8 groups. Both have random
float32 weights, in which neither reply nor speech ever ends, so that every request writes the same number of tokens and
frames; all is greedy, on one thread. transformers answers one request after the other, M* all at once, from the request
to the last sample at the caller. *Real-time factor* is the time until the last request is answered over the seconds of
one request's speech; *throughput* is the speech of all requests over that time. Samples are compared before the clock
runs.

The second table takes the talker's step apart: milliseconds per frame of the decoder, of the code predictor, and of the
rest (sampling, scheduling, caches), for talkers that have the machine for themselves.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from mstar_qwen_omni import plugin
from mstar_qwen_omni.config import QwenOmniConfig
from mstar_qwen_omni.processor import QwenOmniProcessor
from mstar_qwen_omni.speech.node import LISTEN, TalkerNode
from mstar_qwen_omni.walks import nodes
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from torch import nn

from mstar_core.client.engine import Engine
from mstar_core.engines.base import BatchLimits, Call, Chunk, EngineSettings, NodeContext, NodeRequest
from mstar_core.engines.build import CORE_ENGINES, build_engine
from mstar_core.spec.content import Audio, Text
from mstar_core.spec.placement import NodeGroup, Placement, WorkerPlace
from mstar_core.testing.plugins import registry_with

Floats = NDArray[np.float32]

MODEL = "qwen3-omni"
CPU = torch.device("cpu")
RATE = 24_000
TARGET = 2.7
"""Times the throughput of transformers at 16 requests."""

FIXTURE = Path(__file__).parents[1] / "plugins" / "mstar-qwen-omni" / "tests" / "data" / "qwen_omni"
SPOKEN = {
    "temperature": 0.0,
    "talker_temperature": 0.0,
    "predictor_temperature": 0.0,
    "talker_repetition_penalty": 1.0,
}

MID: dict[str, dict[str, Any]] = {
    "thinker_config.text_config": {
        "hidden_size": 512, "num_hidden_layers": 6, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64,
        "num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 256,
    },
    "thinker_config.audio_config": {"output_dim": 512},
    "thinker_config.vision_config": {"out_hidden_size": 512},
    "talker_config": {"thinker_hidden_size": 512, "num_code_groups": 8},
    "talker_config.text_config": {
        "hidden_size": 384, "num_hidden_layers": 4, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 64,
        "num_local_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 192,
        "shared_expert_intermediate_size": 384, "intermediate_size": 768,
    },
    "talker_config.code_predictor_config": {
        "hidden_size": 384, "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 64,
        "intermediate_size": 1024, "num_code_groups": 8, "layer_types": ["full_attention"] * 3,
    },
    "code2wav_config": {
        "num_quantizers": 8, "hidden_size": 192, "num_hidden_layers": 3, "intermediate_size": 512, "decoder_dim": 128,
        "sliding_window": 24,
    },
}  # fmt: skip
"""What the middle size changes in the fixture's configuration. Rotary sections follow from the head size."""


def write_checkpoint(directory: Path, size: str) -> None:
    """Random weights in the published layout, in which nothing ends by itself."""
    from transformers import AutoConfig, Qwen3OmniMoeForConditionalGeneration

    values = json.loads((FIXTURE / "config.json").read_text())
    for path, changes in (MID if size == "mid" else {}).items():
        _at(values, path).update(changes)
    if size == "mid":
        for path in ("thinker_config.text_config", "talker_config.text_config"):
            _at(values, path)["rope_parameters"]["mrope_section"] = [12, 10, 10]
    (directory / "config.json").write_text(json.dumps(values))
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.json", "preprocessor_config.json"):
        (directory / name).write_bytes((FIXTURE / name).read_bytes())
    with _quiet():
        torch.manual_seed(0)
        model = Qwen3OmniMoeForConditionalGeneration(AutoConfig.from_pretrained(directory)).eval()
        _enliven(model)
        model.save_pretrained(directory)


def _at(values: dict[str, Any], path: str) -> dict[str, Any]:
    for key in path.split("."):
        values = values[key]
    return values


def _enliven(model: Any) -> None:
    """Larger weights, so that replies and codes depend on what came before; rows of zeros for the ids that end."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                fan = parameter[0].numel()
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * fan**-0.5)
        model.talker.codec_head.weight[model.config.talker_config.codec_eos_token_id] = 0
        model.thinker.lm_head.weight[model.config.im_end_token_id] = 0


@contextmanager
def _quiet() -> Iterator[None]:
    """Without transformers' remarks on the configuration."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """How much each request says: tokens of the reply, frames of speech."""

    tokens: int
    frames: int

    def prompts(self, batch: int) -> list[str]:
        """The same texts for every peer and round."""
        return [f"Tell me something about ship number {number}, please." for number in range(batch)]


class Peer(Protocol):
    """Something that speaks."""

    name: str

    def speak(self, prompts: Sequence[str], job: Job) -> list[Floats]:
        """The samples of each reply."""


class TransformersPeer:
    """`Qwen3OmniMoeForConditionalGeneration.generate`, one request after the other."""

    name = "transformers"

    def __init__(self, directory: Path) -> None:
        from transformers import Qwen3OmniMoeForConditionalGeneration

        with _quiet():
            self.model = Qwen3OmniMoeForConditionalGeneration.from_pretrained(directory, dtype=torch.float32).eval()
        self._processor = QwenOmniProcessor(QwenOmniConfig.read(directory), directory)

    def speak(self, prompts: Sequence[str], job: Job) -> list[Floats]:
        """The samples of each reply."""
        return [self._answer(prompt, job) for prompt in prompts]

    def _answer(self, prompt: str, job: Job) -> Floats:
        params = {"max_tokens": job.tokens, "audio_padding": "own", "use_audio_in_video": False, "fps": 1.0}
        ids = torch.as_tensor(self._processor.prepare([Text(prompt)], params).inputs["ids"][0])
        with torch.inference_mode(), _quiet():
            _, samples = self.model.generate(
                ids[None],
                thinker_max_new_tokens=job.tokens,
                thinker_eos_token_id=self.model.config.im_end_token_id,
                thinker_do_sample=False,
                talker_do_sample=False,
                talker_repetition_penalty=1.0,
                talker_max_new_tokens=job.frames + 1,  # the last one is not heard
                return_audio=True,
                speaker="ethan",
            )
        result: Floats = samples.flatten().numpy()
        return result


class SystemPeer:
    """M* in one process; all requests are there at once."""

    def __init__(self, directory: Path, *, compile: bool = False) -> None:
        self.name = "M*, compiled" if compile else "M*"
        names = tuple(node.name for node in nodes(QwenOmniConfig.read(directory)))
        placement = Placement(
            workers={"main": WorkerPlace(device="cpu", threads=1)},
            groups=(NodeGroup(nodes=names, worker="main", compile=compile),),
        )
        self.engine = Engine(MODEL, checkpoint=directory, placement=placement, registry=registry_with(plugin))

    def speak(self, prompts: Sequence[str], job: Job) -> list[Floats]:
        """The samples of each reply."""
        tickets = [
            self.engine.submit(Text(prompt), max_tokens=job.tokens, max_audio_frames=job.frames, **SPOKEN)
            for prompt in prompts
        ]
        return [np.concatenate([each.samples for each in ticket if isinstance(each, Audio)]) for ticket in tickets]

    def close(self) -> None:
        """Stop it."""
        self.engine.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One peer with so many requests: medians over rounds."""

    size: str
    peer: str
    batch: int
    seconds: float
    cpu_seconds: float
    real_time_factor: float
    throughput: float


def check(peers: Sequence[Peer], job: Job) -> None:
    """All peers say the same."""
    prompts = job.prompts(2)
    wanted, *others = [peer.speak(prompts, job) for peer in peers]
    for peer, made in zip(peers[1:], others, strict=True):
        for ours, theirs in zip(made, wanted, strict=True):
            np.testing.assert_allclose(ours, theirs, atol=2e-3, rtol=0, err_msg=peer.name)


def measure(size: str, peers: Sequence[Peer], batches: Sequence[int], rounds: int, job: Job) -> list[Measured]:
    """Every peer with every number of requests, the peers alternating within each round."""
    results = []
    for batch in batches:
        taken: dict[str, list[tuple[float, float]]] = {peer.name: [] for peer in peers}
        for _ in range(rounds):
            for peer in peers:
                wall, cpu = time.perf_counter(), time.process_time()
                made = peer.speak(job.prompts(batch), job)
                taken[peer.name].append((time.perf_counter() - wall, time.process_time() - cpu))
        speech = len(made[0]) / RATE
        for name, pairs in taken.items():
            seconds, cpu = (statistics.median(pair[axis] for pair in pairs) for axis in (0, 1))
            results.append(
                Measured(
                    size=size,
                    peer=name,
                    batch=batch,
                    seconds=seconds,
                    cpu_seconds=cpu,
                    real_time_factor=seconds / speech,
                    throughput=batch * speech / seconds,
                )
            )
    return results


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The talker's step of one peer, in milliseconds per frame of all requests: medians over rounds."""

    size: str
    peer: str
    batch: int
    decoder: float
    predictor: float
    rest: float


class Clock:
    """Adds up the time inside modules, by name. Calls that bring several rows of one sequence do not count: they are
    prompts."""

    def __init__(self, modules: Mapping[str, nn.Module], counts: Callable[[str, tuple[Any, ...], Any], bool]) -> None:
        self.seconds = dict.fromkeys(modules, 0.0)
        self._counts = counts
        for name, module in modules.items():
            module.register_forward_pre_hook(self._begin)
            module.register_forward_hook(self._end(name), with_kwargs=True)
        self._began: list[float] = []

    def take(self) -> dict[str, float]:
        """The times since the last call."""
        taken, self.seconds = self.seconds, dict.fromkeys(self.seconds, 0.0)
        return taken

    def _begin(self, module: nn.Module, given: Any) -> None:
        self._began.append(time.perf_counter())

    def _end(self, name: str) -> Callable[..., None]:
        def end(module: nn.Module, given: tuple[Any, ...], named: Any, made: Any) -> None:
            seconds = time.perf_counter() - self._began.pop()
            if self._counts(name, given, named):
                self.seconds[name] += seconds

        return end


class TalkerPeer:
    """The talker in its engine, without a worker: prompts are read, then every request makes frames."""

    def __init__(self, directory: Path, *, compile: bool = False) -> None:
        self.name = "M*, compiled" if compile else "M*"
        self._config = QwenOmniConfig.read(directory)
        node = next(node for node in nodes(self._config) if node.name == "talker")
        context = NodeContext(
            node=node, config=self._config, checkpoint=directory, device=CPU, dtype=torch.float32
        )
        settings = EngineSettings(kv_tokens=32768, compile=compile)
        self.engine = build_engine(CORE_ENGINES["kv_cache"], replace(context), settings)
        talker: TalkerNode = self.engine.node  # type: ignore[attr-defined]
        modules = {"decoder": talker.model.decoder, "predictor": talker.model.predictor}
        self._clock = Clock(modules, lambda name, given, named: True)
        self._keys = iter(range(1, 1 << 30))

    def frames(self, batch: int, job: Job) -> tuple[float, float, float]:
        """Seconds per frame: decoder, predictor, rest."""
        requests = [NodeRequest(next(self._keys), SPOKEN | self._unset(), seed) for seed in range(batch)]
        for request in requests:
            self.engine.open(request)
        self._round(LISTEN, requests, 0, [None] * batch)
        self._clock.take()
        feedback: list[Any] = [None] * batch
        began = time.perf_counter()
        for step in range(1, 1 + job.frames):
            feedback = self._round("talk", requests, step, feedback)
        seconds = time.perf_counter() - began
        for request in requests:
            self.engine.close(request)
        taken = self._clock.take()
        decoder, predictor = taken["decoder"] / job.frames, taken["predictor"] / job.frames
        return decoder, predictor, seconds / job.frames - decoder - predictor

    def _unset(self) -> dict[str, Any]:
        names = ("talker_top_k", "talker_top_p", "predictor_top_k", "predictor_top_p")
        return {**dict.fromkeys(names), "voice": next(iter(self._config.talker.codec.speakers))}

    def _round(self, walk: str, requests: list[NodeRequest], step: int, feedback: Sequence[Any]) -> list[Any]:
        width = self._config.thinker.hidden
        item = torch.zeros(20, 2 * width + 1) if step == 0 else torch.zeros(1, width)
        fixed = {
            "text": Chunk((item,), 0, step, False),
            "turns": torch.tensor([[0, 20]]),
            "positions": torch.arange(20.0).expand(3, -1),
        }
        calls = [
            Call(request, walk, {**fixed, "feedback": last}, step)
            for request, last in zip(requests, feedback, strict=True)
        ]
        batch = self.engine.collect(walk, calls, BatchLimits(tokens=4096))
        assert batch is not None
        self.engine.run(batch)
        return [dict(made)["feedback"] if step else None for made in self.engine.finish(batch)]  # type: ignore[arg-type]


class TransformersTalker:
    """The talker inside `generate`: one request after the other, so that a frame of a batch is one of each."""

    name = "transformers"

    def __init__(self, peer: TransformersPeer) -> None:
        self._peer = peer
        talker = peer.model.talker
        modules = {"decoder": talker.model, "predictor": talker.code_predictor.model, "head": talker.codec_head}
        self._generate = talker.code_predictor.generate
        self._predictor = 0.0
        self._whole = 0.0
        self._clock = Clock({"decoder": modules["decoder"]}, _is_step)

    def frames(self, batch: int, job: Job) -> tuple[float, float, float]:
        """Seconds per frame: decoder, predictor, rest."""
        talker = self._peer.model.talker
        predictor, whole = _Timed(talker.code_predictor.generate), _Timed(talker.generate)
        talker.code_predictor.generate, talker.generate = predictor, whole
        self._clock.take()
        try:
            self._peer.speak(job.prompts(1), job)
        finally:
            talker.code_predictor.generate, talker.generate = predictor.function, whole.function
        decoder = self._clock.take()["decoder"]
        rest = whole.seconds - decoder - predictor.seconds
        return tuple(batch * part / job.frames for part in (decoder, predictor.seconds, rest))  # type: ignore[return-value]


class _Timed:
    """A function, and how long it took in all."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.seconds = 0.0

    def __call__(self, *given: Any, **named: Any) -> Any:
        began = time.perf_counter()
        try:
            return self.function(*given, **named)
        finally:
            self.seconds += time.perf_counter() - began


def _is_step(name: str, given: tuple[Any, ...], named: Mapping[str, Any]) -> bool:
    """Whether a call of the reference's talker is one of a single row."""
    rows: int = named["inputs_embeds"].shape[1]
    return rows == 1


def measure_steps(
    size: str, peers: Sequence[TalkerPeer | TransformersTalker], batches: Sequence[int], rounds: int, job: Job
) -> list[Step]:
    """Every peer's talker with every number of requests, alternating within each round."""
    results = []
    for batch in batches:
        taken: dict[str, list[tuple[float, float, float]]] = {peer.name: [] for peer in peers}
        for _ in range(rounds):
            for peer in peers:
                taken[peer.name].append(peer.frames(batch, job))
        for name, parts in taken.items():
            decoder, predictor, rest = (1e3 * statistics.median(part[axis] for part in parts) for axis in range(3))
            results.append(Step(size=size, peer=name, batch=batch, decoder=decoder, predictor=predictor, rest=rest))
    return results


def run(size: str, batches: Sequence[int], rounds: int, job: Job) -> tuple[list[Measured], list[Step]]:
    """One size: the same checkpoint for all peers."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        directory = Path(name)
        write_checkpoint(directory, size)
        reference = TransformersPeer(directory)
        systems = [SystemPeer(directory), SystemPeer(directory, compile=True)]
        for system in systems:
            stack.callback(system.close)
        peers: list[Peer] = [reference, *systems]
        check(peers, job)
        whole = measure(size, peers, batches, rounds, job)
        talkers = [TransformersTalker(reference), TalkerPeer(directory), TalkerPeer(directory, compile=True)]
        return whole, measure_steps(size, talkers, batches, rounds, job)


def whole_table(results: Sequence[Measured]) -> Table:
    """Speech beside transformers."""
    base = {(each.size, each.batch): each for each in results if each.peer == TransformersPeer.name}
    shown = Table(
        "size", "peer", "requests", "s", "CPU s", "real-time factor", "throughput", "x transformers",
        title="Text in, speech out",
    )  # fmt: skip
    for each in results:
        ratio = each.throughput / base[each.size, each.batch].throughput
        goal = f" (goal {TARGET})" if each.batch == 16 and each.peer != TransformersPeer.name else ""
        shown.add_row(
            each.size,
            each.peer,
            str(each.batch),
            f"{each.seconds:.2f}",
            f"{each.cpu_seconds:.2f}",
            f"{each.real_time_factor:.3f}",
            f"{each.throughput:.2f}",
            f"{ratio:.2f}{goal}",
        )
    return shown


def step_table(results: Sequence[Step]) -> Table:
    """The talker's step."""
    shown = Table(
        "size", "peer", "requests", "decoder", "predictor", "rest", "ms/frame", "per request", title="The talker's step"
    )
    for each in results:
        whole = each.decoder + each.predictor + each.rest
        figures = (each.decoder, each.predictor, each.rest, whole, whole / each.batch)
        shown.add_row(each.size, each.peer, str(each.batch), *(f"{figure:.2f}" for figure in figures))
    return shown


def main() -> None:
    """Measure and print; write JSON when asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="tiny,mid")
    parser.add_argument("--batches", default="1,4,16")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--frames", type=int, default=40)
    parser.add_argument("--json", type=Path, help="where to write the figures")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    job = Job(tokens=arguments.tokens, frames=arguments.frames)
    batches = [int(each) for each in arguments.batches.split(",")]
    whole: list[Measured] = []
    steps: list[Step] = []
    for size in arguments.sizes.split(","):
        measured, taken = run(size, batches, arguments.rounds, job)
        whole += measured
        steps += taken
    Console().print(whole_table(whole))
    Console().print(step_table(steps))
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        figures = {"speech": [asdict(each) for each in whole], "steps": [asdict(each) for each in steps]}
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
