"""BAGEL's loop as the reference computes it (ByteDance-Seed/Bagel at 056b5fd), in plain torch: what `bagel.py` measures
M* beside.

Every context is a dense cache of its own, and forks are copies. Each forward writes a layer's cached keys and values
and its own into new buffers; branches of guidance run one after the other; rows go to their expert by index; embeddings
of markers and positions are looked up at every step. The text of a text-to-image request is prefilled for two contexts.
The ViT and the autoencoder, which are little of the time, are the plugin's modules, with plain weights.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TypeAlias, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from mstar_bagel.config import BagelConfig
from mstar_bagel.vision.latents import pack_latent, unpack_latent
from mstar_bagel.vision.nodes import levels, normalised
from mstar_bagel.vision.pictures import Picture, fit
from mstar_bagel.vision.siglip import VisionTower
from mstar_bagel.vision.vae import Decoder, Encoder
from mstar_bagel.vision.weights import Names, autoencoder_names, load_part, vit_names
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import nn

from mstar_core.engines.base import NodeContext
from mstar_core.spec.graph import Node

Rows: TypeAlias = "tuple[torch.Tensor, torch.Tensor] | None"
"""Indices of the rows of either expert; None where all are the first's."""

_Module = TypeVar("_Module", bound=nn.Module)

_TIME_WIDTH = 256
_GEN = "_moe_gen"


@dataclass(frozen=True, slots=True, kw_only=True)
class Guidance:
    """How branches are combined, and when; names as the plugin's parameters."""

    steps: int
    text_scale: float
    img_scale: float
    interval_start: float
    renorm: str
    timestep_shift: float = 3.0


@dataclass(slots=True)
class Context:
    """One branch's cache, a tensor `[tokens, kv heads, head_dim]` per layer, and its next position."""

    keys: list[torch.Tensor]
    values: list[torch.Tensor]
    position: int = 0


class Reference:
    """A checkpoint in float32; requests run one after the other, as the reference's interface has it."""

    def __init__(self, directory: Path) -> None:
        self.config = BagelConfig.read(directory)
        self._weights = {name: each.float() for name, each in load_file(directory / "ema.safetensors").items()}
        self._vit = _plain(directory, self.config, lambda: VisionTower(self.config.vit, self._hidden), vit_names)
        self._encoder = _plain(directory, self.config, lambda: Encoder(self.config.vae), autoencoder_names("encoder"))
        self._decoder = _plain(directory, self.config, lambda: Decoder(self.config.vae), autoencoder_names("decoder"))

    @torch.inference_mode()
    def paint(
        self, prompt: Sequence[int], picture: Picture | None, noise: NDArray[np.float32], guidance: Guidance
    ) -> Picture:
        """The picture that `noise` `[rows * columns, 64]` becomes: of the edited one's size, or a square."""
        main, no_picture = self._context(), self._context()
        if picture is not None:
            picture = fit(picture, self.config.transforms.vae)
            self._read_latents(main, picture)
            self._read_picture(main, picture)
        no_text = copy.deepcopy(main)
        for context in (main, no_picture):
            self._read_text(context, prompt)
        side = self.config.pixels_per_token
        rows = round(len(noise) ** 0.5) if picture is None else picture.shape[0] // side
        latent = self._denoise([main, no_text, no_picture], torch.from_numpy(noise), rows, guidance)
        pixels = self._decoder(unpack_latent(latent[None], rows, self.config.latent_patch))
        painted: Picture = levels(pixels)[0].numpy()
        return painted

    @torch.inference_mode()
    def answer(self, prompt: Sequence[int], picture: Picture, tokens: int) -> list[int]:
        """The next `tokens` ids, greedily; none of them ends the text, as the benchmark's weights have it."""
        context = self._context()
        self._read_picture(context, fit(picture, self.config.transforms.vae))
        self._read_text(context, prompt)
        ids = [self.config.ids.bos]
        for _ in range(tokens):
            place = torch.tensor([context.position])
            hidden = self._forward(self._embed(ids[-1:]), place, context, None, causal=True)
            context.position += 1
            ids.append(int(F.linear(hidden, self._weights["language_model.lm_head.weight"]).argmax()))
        return ids[1:]

    @property
    def _hidden(self) -> int:
        return self.config.llm.hidden

    def _context(self) -> Context:
        llm = self.config.llm
        empty = torch.empty(0, llm.kv_heads, llm.head_dim)
        return Context([empty] * llm.layers, [empty] * llm.layers)

    def _read_text(self, context: Context, ids: Sequence[int]) -> None:
        framed = [self.config.ids.bos, *ids, self.config.ids.eos]
        places = torch.arange(context.position, context.position + len(framed))
        self._forward(self._embed(framed), places, context, None, causal=True)
        context.position += len(framed)

    def _read_picture(self, context: Context, picture: Picture) -> None:
        seen = torch.from_numpy(fit(picture, self.config.transforms.vit))
        self._read_image(context, self._vit(normalised(seen)[None])[0], None)

    def _read_latents(self, context: Context, picture: Picture) -> None:
        mean, _ = self._encoder(normalised(torch.from_numpy(picture)).permute(2, 0, 1)[None])
        tokens = pack_latent(self._encoder.latent(mean), self.config.latent_patch)[0]
        rows = picture.shape[0] // self.config.pixels_per_token
        self._read_image(context, self._latent_rows(tokens, torch.zeros(1), rows), _by_expert(len(tokens)))

    def _read_image(self, context: Context, x: torch.Tensor, rows: Rows) -> None:
        framed = self._framed(x)
        places = torch.full((len(framed),), context.position)
        self._forward(framed, places, context, rows, causal=False)
        context.position += 1

    def _denoise(self, contexts: Sequence[Context], x: torch.Tensor, rows: int, guidance: Guidance) -> torch.Tensor:
        even = torch.linspace(1, 0, guidance.steps)
        times = guidance.timestep_shift * even / (1 + (guidance.timestep_shift - 1) * even)
        experts = _by_expert(len(x))
        for time, after in pairwise(times):
            framed = self._framed(self._latent_rows(x, time[None], rows))
            on = guidance.text_scale > 1 and bool(time > guidance.interval_start)
            branches = contexts[: 1 + on + (on and guidance.img_scale > 1)]
            velocities = [self._velocity(framed, context, experts) for context in branches]
            x = x - _guided(velocities, guidance) * (time - after)
        return x

    def _velocity(self, framed: torch.Tensor, context: Context, rows: Rows) -> torch.Tensor:
        places = torch.full((len(framed),), context.position)
        hidden = self._forward(framed, places, context, rows, causal=False, keep=False)
        return self._linear("llm2vae", hidden[1:-1])

    def _embed(self, ids: Sequence[int]) -> torch.Tensor:
        return F.embedding(torch.tensor(ids), self._weights["language_model.model.embed_tokens.weight"])

    def _framed(self, x: torch.Tensor) -> torch.Tensor:
        markers = self._embed([self.config.ids.start_of_image, self.config.ids.end_of_image])
        framed = x.new_zeros(len(x) + 2, self._hidden)
        framed[[0, len(x) + 1]] = markers
        framed[torch.arange(1, len(x) + 1)] = x
        return framed

    def _latent_rows(self, tokens: torch.Tensor, time: torch.Tensor, rows: int) -> torch.Tensor:
        columns = len(tokens) // rows
        places = (torch.arange(rows)[:, None] * self.config.latent_side + torch.arange(columns)).flatten()
        frequencies = 10000.0 ** -(torch.arange(_TIME_WIDTH // 2) / (_TIME_WIDTH // 2))
        angles = time[:, None] * frequencies
        embedded = self._linear("time_embedder.mlp.0", torch.cat([angles.cos(), angles.sin()], dim=1))
        embedded = self._linear("time_embedder.mlp.2", F.silu(embedded))  # [1, hidden]
        return self._linear("vae2llm", tokens) + embedded + self._weights["latent_pos_embed.pos_embed"][places]

    def _forward(
        self, x: torch.Tensor, places: torch.Tensor, context: Context, rows: Rows, *, causal: bool, keep: bool = True
    ) -> torch.Tensor:
        """Final-normed rows `[rows, hidden]`; with `keep` the context grows by them."""
        rotary = self._rotary(places)
        for layer in range(self.config.llm.layers):
            name = f"language_model.model.layers.{layer}"
            normed = _routed(self._norm, f"{name}.input_layernorm{{}}", x, rows)
            attended = self._attention(name, layer, normed, rotary, context, rows, causal, keep)
            x = x + _routed(self._linear, f"{name}.self_attn.o_proj{{}}", attended, rows)
            normed = _routed(self._norm, f"{name}.post_attention_layernorm{{}}", x, rows)
            x = x + _routed(self._mlp, f"{name}.mlp{{}}", normed, rows)
        return _routed(self._norm, "language_model.model.norm{}", x, rows)

    def _attention(
        self,
        name: str,
        layer: int,
        x: torch.Tensor,
        rotary: tuple[torch.Tensor, torch.Tensor],
        context: Context,
        rows: Rows,
        causal: bool,
        keep: bool,
    ) -> torch.Tensor:
        split = (len(x), -1, self.config.llm.head_dim)
        q, k, v = (_routed(self._linear, f"{name}.self_attn.{each}_proj{{}}", x, rows).view(split) for each in "qkv")
        q = _turned(_routed(self._norm, f"{name}.self_attn.q_norm{{}}", q, rows), *rotary)
        k = _turned(_routed(self._norm, f"{name}.self_attn.k_norm{{}}", k, rows), *rotary)
        k, v = _merged(context.keys[layer], k), _merged(context.values[layer], v)  # [cached + rows, kv heads, head_dim]
        if keep:
            context.keys[layer], context.values[layer] = k, v
        group = self.config.llm.heads // self.config.llm.kv_heads
        mask = torch.ones(len(x), len(k), dtype=torch.bool).tril(len(k) - len(x)) if causal else None
        q, k, v = (each.transpose(0, 1)[None] for each in (q, k, v))  # [1, heads, tokens, head_dim] each
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  # [1, heads, rows, head_dim]
        return out[0].transpose(0, 1).flatten(1)

    def _rotary(self, places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        half = self.config.llm.head_dim // 2
        angles = places[:, None] * self.config.llm.theta ** -(torch.arange(half) / half)  # [rows, head_dim / 2]
        angles = angles.repeat(1, 2)[:, None]
        return angles.cos(), angles.sin()

    def _linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self._weights[f"{name}.weight"], self._weights.get(f"{name}.bias"))

    def _norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return (
            x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.config.llm.eps) * self._weights[f"{name}.weight"]
        )

    def _mlp(self, name: str, x: torch.Tensor) -> torch.Tensor:
        gated = F.silu(self._linear(f"{name}.gate_proj", x)) * self._linear(f"{name}.up_proj", x)
        return self._linear(f"{name}.down_proj", gated)


def _by_expert(tokens: int) -> Rows:
    """Markers at both ends are the first expert's, latents the second's."""
    return torch.tensor([0, tokens + 1]), torch.arange(1, tokens + 1)


def _routed(apply: Callable[[str, torch.Tensor], torch.Tensor], name: str, x: torch.Tensor, rows: Rows) -> torch.Tensor:
    """`apply` with either expert's weights; `name` has a place for the second's suffix."""
    if rows is None:
        return apply(name.format(""), x)
    parts = [apply(name.format(suffix), x[index]) for suffix, index in zip(("", _GEN), rows, strict=True)]
    joined = x.new_zeros(len(x), *parts[0].shape[1:])
    for index, part in zip(rows, parts, strict=True):
        joined[index] = part
    return joined


def _merged(cached: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    merged = new.new_zeros(len(cached) + len(new), *new.shape[1:])
    merged[torch.arange(len(cached))] = cached
    merged[torch.arange(len(cached), len(merged))] = new
    return merged


def _turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


def _guided(velocities: Sequence[torch.Tensor], guidance: Guidance) -> torch.Tensor:
    """The velocity of an Euler step from those of the branches main, text dropped, picture dropped."""
    main, *dropped = velocities
    if not dropped:
        return main
    axes = (0, 1) if guidance.renorm == "global" else (1,)
    text = dropped[0] + guidance.text_scale * (main - dropped[0])
    if guidance.renorm == "text_channel":
        text = _renormed(text, main, axes)
    full = text if len(dropped) == 1 else dropped[1] + guidance.img_scale * (text - dropped[1])
    return full if guidance.renorm == "text_channel" else _renormed(full, main, axes)


def _renormed(v: torch.Tensor, main: torch.Tensor, axes: tuple[int, ...]) -> torch.Tensor:
    scale = main.norm(dim=axes, keepdim=True) / (v.norm(dim=axes, keepdim=True) + 1e-8)
    renormed: torch.Tensor = v * scale.clamp(0, 1)
    return renormed


def _plain(
    directory: Path, config: BagelConfig, build: Callable[[], _Module], names: Callable[[nn.Module], Names]
) -> _Module:
    """A module with its weights as published."""
    context = NodeContext(
        node=Node(name="reference", engine="stateless", inputs=(), outputs=(), factory="reference:none"),
        config=config,
        checkpoint=directory,
        device=torch.device("cpu"),
        dtype=torch.float32,
    )
    return load_part(build, context, names, dtype=torch.float32, filled=lambda _: None)
