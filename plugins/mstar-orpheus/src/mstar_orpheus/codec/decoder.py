"""The SNAC decoder: codes -> latents -> samples, for inference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from pathlib import Path

import torch
from torch import Tensor, nn

from mstar_orpheus.codec.config import SnacConfig
from mstar_orpheus.codec.layers import DecoderBlock, Head, Stem, snake_scale
from mstar_orpheus.codec.reach import DecoderRows, Rows, plan_rows
from mstar_orpheus.codec.weights import read_weights


class SnacDecoder(nn.Module):
    """Decodes windows of SNAC latents, computing in every layer only the rows that the wanted samples depend on.

    On a CPU every row of a batch is decoded by the same calls on the same shapes as it would be alone, so its samples
    are the same bits in any batch.
    """

    def __init__(self, config: SnacConfig, weights: Mapping[str, Tensor]) -> None:
        """`weights` as `read_weights` gives them; they are folded here, once."""
        super().__init__()
        self.config = config
        last = 2 + len(config.decoder_rates)
        names = [f"decoder.model.{index}.block" for index in range(2, last)]
        alphas = [f"{name}.0.alpha" for name in names] + [f"decoder.model.{last}.alpha"]
        scales = [snake_scale(weights[alpha]) for alpha in alphas]
        self.stem = Stem(weights, "decoder.model", scales[0])
        self.blocks = nn.ModuleList(
            DecoderBlock(weights, name, rate, scale)
            for name, rate, scale in zip(names, config.decoder_rates, scales[1:], strict=True)
        )
        self.head = Head(weights, f"decoder.model.{last}")
        self.codebooks = nn.ParameterList(
            nn.Parameter(_projected(weights, level), requires_grad=False) for level in range(len(config.vq_strides))
        )  # each [codebook_size, latent_dim]

    @classmethod
    def load(
        cls, directory: Path | str, *, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
    ) -> SnacDecoder:
        """The decoder of the checkpoint in `directory`: `config.json` with `model.safetensors` or `pytorch_model.bin`.

        Raises `SnacConfigError` or `SnacWeightsError`, both of which are ValueErrors that name the file.
        """
        config = SnacConfig.read(directory)
        return cls(config, read_weights(directory, config)).to(device=device, dtype=dtype).eval()

    @property
    def device(self) -> torch.device:
        """Where the weights are, and so where codes and latents have to be."""
        device: torch.device = self.codebooks[0].device
        return device

    @property
    def dtype(self) -> torch.dtype:
        """What the layers compute in."""
        dtype: torch.dtype = self.codebooks[0].dtype
        return dtype

    @torch.inference_mode()
    def from_codes(self, codes: Sequence[Tensor]) -> Tensor:
        """Codes of every level, coarsest first, [batch, time / stride] -> latents [batch, time, latent_dim]."""
        levels = zip(self.codebooks, codes, self.config.vq_strides, strict=True)
        parts: list[Tensor] = [codebook[level].repeat_interleave(stride, dim=1) for codebook, level, stride in levels]
        return reduce(torch.add, parts)

    @torch.inference_mode()
    def forward(self, latents: Tensor, noise: Sequence[Tensor] | None = None, samples: Rows | None = None) -> Tensor:
        """Latents [batch, time, latent_dim] -> samples [batch, len(samples)], by default all `time * hop` of them.

        `noise` has one tensor per block, [batch, rows], for the rows `plan_rows(...).blocks[i].upsampled` (with the
        default `samples`: all rows of the block's output rate); None leaves the noise blocks out.
        """
        batch, length = latents.shape[:2]
        rows = plan_rows(self.config, length, Rows(0, length * self.config.hop) if samples is None else samples)
        step = 1 if latents.device.type == "cpu" else batch
        parts = [slice(start, start + step) for start in range(0, batch, step)]
        return torch.cat(
            [self._decode(latents[part], None if noise is None else [n[part] for n in noise], rows) for part in parts]
        )

    def _decode(self, latents: Tensor, noise: Sequence[Tensor] | None, rows: DecoderRows) -> Tensor:
        per_block = [None] * len(self.blocks) if noise is None else noise
        scaled: Tensor = self.stem(latents, Rows(0, latents.shape[1]), rows.hidden)
        for block, block_rows, block_noise in zip(self.blocks, rows.blocks, per_block, strict=True):
            scaled = block(scaled, block_rows, block_noise)
        made: Tensor = self.head(scaled, rows.blocks[-1].units[-1], rows.samples)
        return made


def _projected(weights: Mapping[str, Tensor], level: int) -> Tensor:
    """A level's codebook after its output projection: [codebook_size, latent_dim]."""
    name = f"quantizer.quantizers.{level}"
    projection = weights[f"{name}.out_proj.weight"][..., 0]  # [latent_dim, codebook_dim]
    return weights[f"{name}.codebook.weight"] @ projection.T + weights[f"{name}.out_proj.bias"]
