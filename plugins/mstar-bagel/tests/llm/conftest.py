"""Checkpoints with a tokenizer for the recorded sets, and services whose nodes keep what they computed."""

from __future__ import annotations

import contextlib
import json
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from mstar_bagel import plugin
from mstar_bagel.config import BagelConfig
from mstar_bagel.llm.nodes import LanguageModel
from mstar_bagel.painter import Guidance
from mstar_bagel.tokenizer import BagelTokenizer

from mstar_core import hookimpl
from mstar_core.client.service import Service
from mstar_core.spec.content import Content, Image, Progress, Tensor, Text
from mstar_core.testing.plugins import registry_with

SPECIAL = {
    "bos_token_id": "<|im_start|>",
    "eos_token_id": "<|im_end|>",
    "start_of_image": "<|vision_start|>",
    "end_of_image": "<|vision_end|>",
}


@pytest.fixture(scope="session")
def checkpoint_of(tmp_path_factory) -> Callable[[Path], Path]:
    """A recorded set as a checkpoint: its files, and the tokenizer that stands behind the recorded ids."""
    made: dict[Path, Path] = {}

    def making(source: Path) -> Path:
        if source not in made:
            made[source] = tmp_path_factory.mktemp("checkpoint")
            for path in source.iterdir():
                (made[source] / path.name).symlink_to(path)
            (made[source] / "tokenizer.json").write_text(json.dumps(_tokenizer(source)))
        return made[source]

    return making


def _tokenizer(source: Path) -> dict[str, Any]:
    """One word for every id, its number; and the words of the thinking prompts."""
    config = json.loads((source / "config.json").read_text())
    prompts = json.loads((source / "cases.json").read_text())["cases"]["g_pieces"]["think_prompts"].values()
    special = {content: config["special_token_ids"][key] for key, content in SPECIAL.items()}
    vocab = {str(id): id for id in range(config["llm_config"]["vocab_size"])} | special
    for prompt in prompts:
        vocab |= dict(zip(prompt["text"].split(), prompt["ids"], strict=True))
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": id, "content": content, **flags} for content, id in special.items()],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "<|vision_end|>"},
    }


@dataclass
class Log:
    """What the nodes computed, in order: steps of the language model, and steps of Euler."""

    steps: list[dict[str, Any]] = field(default_factory=list)
    euler: list[dict[str, Any]] = field(default_factory=list)

    def clear(self) -> None:
        self.steps.clear()
        self.euler.clear()

    def of(self, walk: str) -> list[dict[str, Any]]:
        """The language model's steps of a walk."""
        return [step for step in self.steps if step["walk"] == walk]

    def column(self, name: str) -> torch.Tensor:
        """One value of every Euler step that has it, `[steps, ...]`."""
        return torch.stack([torch.as_tensor(step[name]) for step in self.euler if name in step])


class KeepingBackend:
    """An attention backend that keeps the keys and values that pass through it."""

    def __init__(self, backend: Any, kept: dict[str, Any]) -> None:
        self._backend, self._kept = backend, kept

    def run(self, layer, queries, keys, values, plan, scale=None):
        self._kept["keys"].append(keys.clone())
        self._kept["values"].append(values.clone())
        return self._backend.run(layer, queries, keys, values, plan, scale=scale)


def keeping(log: Log) -> dict[str, Any]:
    """The nodes that keep what they compute in `log`, by name."""

    class KeepingModel(LanguageModel):
        def __init__(self, context):
            super().__init__(context)
            for block in self.model.blocks:
                block.register_forward_hook(lambda _, given, made: log.steps[-1]["layers"].append(made.clone()))
            self.model.register_forward_hook(self._keep)

        def forward(self, step):
            positions = [dict(call.request.state.positions) for call in step.calls]
            kept = {"walk": step.calls[0].walk, "positions": positions, "layers": [], "keys": [], "values": []}
            log.steps.append(kept)
            outputs = super().forward(replace(step, backend=KeepingBackend(step.backend, kept)))
            log.steps[-1]["logits"] = self.model.logits(kept["hidden"])
            return outputs

        def _keep(self, _, given, made):
            log.steps[-1] |= {"rows": given[0].clone(), "hidden": made.clone()}

    class KeepingGuidance(Guidance):
        def _go_on(self, call):
            log.euler.append({"x": call.inputs["latents"].clone(), "v_main": call.inputs["velocity"].clone()})
            outputs = super()._go_on(call)
            log.euler[-1]["latents"] = outputs["latents"].clone()
            return outputs

        def _velocity(self, call, time):
            velocity = super()._velocity(call, time)
            log.euler[-1] |= {"v": velocity.clone(), "t": time, "v_norm": velocity.norm()}
            return velocity

        def _one_of(self, call, branch, main):
            velocity = super()._one_of(call, branch, main)
            log.euler[-1][f"v_cfg_{'img' if branch == 'image' else branch}"] = velocity.clone()
            return velocity

    return {"llm": KeepingModel, "guidance": KeepingGuidance}


@pytest.fixture(scope="session")
def log() -> Log:
    """What the nodes of the `keeper` have kept."""
    return Log()


@pytest.fixture(scope="session")
def keeper(log, checkpoint_of) -> Iterator[Callable[[Path], Service]]:
    """Services of recorded sets whose nodes keep what they compute; the log is empty whenever one is asked for."""
    kept = keeping(log)
    twin = types.ModuleType("keeper")
    for name in (name for name in dir(plugin) if name.startswith("mstar_")):
        setattr(twin, name, getattr(plugin, name))

    @hookimpl
    def mstar_nodes(card, config):
        return tuple(
            replace(node, factory=kept[node.name]) if node.name in kept else node
            for node in plugin.mstar_nodes(card, config)
        )

    twin.mstar_nodes = mstar_nodes
    with contextlib.ExitStack() as stack:
        running: dict[Path, Service] = {}

        def get(source: Path) -> Service:
            if source not in running:
                chosen = {"bagel": str(checkpoint_of(source))}
                started = Service.start(["bagel"], checkpoints=chosen, registry=registry_with(twin))
                running[source] = stack.enter_context(started)
            log.clear()
            return running[source]

        yield get


@dataclass(frozen=True)
class Answer:
    """What a request made: pieces of text joined, pictures, progress, and why it ended."""

    text: str
    pictures: tuple[Any, ...]
    progress: tuple[tuple[int, int], ...]
    end: str
    usage: dict[str, int]


def _answer_of(ticket) -> Answer:
    pieces: list[Any] = list(ticket)
    return Answer(
        "".join(piece.text for piece in pieces if isinstance(piece, Text)),
        tuple(piece.pixels for piece in pieces if isinstance(piece, Image)),
        tuple((piece.done, piece.total) for piece in pieces if isinstance(piece, Progress)),
        ticket.end.reason,
        dict(ticket.end.usage),
    )


@pytest.fixture(scope="session")
def answer_of() -> Callable[[Any], Answer]:
    """All of a ticket."""
    return _answer_of


@pytest.fixture(scope="session")
def ask() -> Callable[..., Answer]:
    """One request: content and parameters in, what came out."""

    def asking(service: Service, content: Sequence[Content | str], made: str = "image", **params: Any) -> Answer:
        pieces = [Text(piece) if isinstance(piece, str) else piece for piece in content]
        return _answer_of(service.submit("bagel", pieces, params, outputs=frozenset(made.split())))

    return asking


def _words(ids: Sequence[int]) -> str:
    """The text whose ids these are: a number is a word."""
    return " ".join(map(str, ids))


def _pictures(case: Any) -> list[Image]:
    """The given pictures, in order."""
    names = sorted(name for name in case.tensors if name.startswith("image") and name[5:].isdigit())
    return [Image(case[name].numpy()) for name in names]


def _content(case: Any) -> list[Content | str]:
    """What an image case was given, and the noises that were drawn."""
    shown = _pictures(case)
    items = [shown[item["image"]] if "image" in item else _words(item["text_ids"]) for item in case.about["items"]]
    noises = [Tensor("noise", case["init_noise"].numpy())]
    if case.about["vae_sample"]:
        noises += [Tensor("posterior_noise", case[f"vae{n}_eps"][0].numpy()) for n in range(len(shown))]
    return [*items, *noises]


def _params(case: Any) -> dict[str, Any]:
    """An image case's parameters by our names. The reference's length of a thought counts bos."""
    given = case.about["hyper"]
    height, width = case.about["output_hw"]
    return {
        "steps": given["num_timesteps"],
        "timestep_shift": given["timestep_shift"],
        "text_scale": given["cfg_text_scale"],
        "img_scale": given["cfg_img_scale"],
        "interval_start": given["cfg_interval"][0],
        "interval_end": given["cfg_interval"][1],
        "renorm": given["cfg_renorm_type"],
        "renorm_min": given["cfg_renorm_min"],
        "height": height,
        "width": width,
        "sample_posterior": case.about["vae_sample"],
        "think": case.about["think"],
        **({"max_think_tokens": given["max_think_token_n"] - 1} if case.about["think"] else {}),
    }


@pytest.fixture(scope="session")
def words() -> Callable[[Sequence[int]], str]:
    """The text whose ids these are."""
    return _words


@pytest.fixture(scope="session")
def shown_in() -> Callable[[Any], list[Image]]:
    """The pictures that were given in a case, in order."""
    return _pictures


@pytest.fixture(scope="session")
def asked_in() -> Callable[[Any], tuple[list[Content | str], dict[str, Any]]]:
    """An image case as a request: content and parameters."""
    return lambda case: (_content(case), _params(case))


@pytest.fixture(scope="session")
def ids_of(checkpoint_of) -> Callable[[Any, str], list[int]]:
    """The ids of a text in a case's vocabulary."""

    def reading(case: Any, text: str) -> list[int]:
        return BagelTokenizer(checkpoint_of(case.directory), BagelConfig.read(case.directory).ids).segment(text)[1:-1]

    return reading
