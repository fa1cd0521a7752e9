"""SNAC streaming: the plugin's exact and compat modes beside the reference loop on the `snac` package, on a CPU.

The reference loop decodes the last 28 ids (4 frames) of a stream for every new frame, one stream at a time, and keeps
the second frame's samples. Both sides run the same random weights and the same codes, with noise, in rounds that
alternate in one process; a figure is the median over the rounds. `snac, folded` is the same loop after the package's
weight normalisation was removed, which its users can do but its loader does not.

    python benchmarks/codec_streams.py [--size real|tiny] [--streams 8] [--frames 8] [--rounds 5] [--json PATH]
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from mstar_orpheus.codec.chunks import COMPAT_CONTEXT, COMPAT_WINDOW, context_frames, first_audio_frames
from mstar_orpheus.codec.config import SnacConfig
from mstar_orpheus.codec.decoder import SnacDecoder
from mstar_orpheus.codec.stream import Chunk, codes_to_levels, decode_compat, decode_exact, to_pcm16
from rich.console import Console
from rich.table import Table
from snac import SNAC
from torch import Tensor
from torch.nn.utils import parametrize

SIZES: dict[str, dict[str, object]] = {
    "real": {"encoder_dim": 48, "decoder_dim": 1024, "codebook_size": 4096},
    "tiny": {"encoder_dim": 8, "decoder_dim": 64, "codebook_size": 64},
}
"""The 24 kHz model (hubertsiuzdak/snac_24khz), and one of the same rates with few channels."""

COMMON: dict[str, object] = {
    "sampling_rate": 24000,
    "encoder_rates": [2, 4, 8, 8],
    "decoder_rates": [8, 8, 4, 2],
    "attn_window_size": None,
    "codebook_dim": 8,
    "vq_strides": [4, 2, 1],
    "noise": True,
    "depthwise": True,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """One way to decode. `run(codes, position, context)` takes codes [streams, frames, slots]."""

    name: str
    context: int
    """Frames before the new ones that a chunk in steady state carries."""
    first: int
    """Frames that a stream must have before its first audio."""
    run: Callable[[Tensor, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Medians of one peer. CPU seconds are per second of audio; times to first audio are codec time alone."""

    peer: str
    cpu_s_per_audio_s: float
    speedup: float
    ids_to_first_audio: int
    first_audio_ms_one_stream: float
    first_audio_ms_all_streams: float
    first_audio_ms_at_rate: float
    """From a stream's first id on, at the given ids per second, all streams starting together."""


def main() -> None:
    """Measures the chosen sizes, prints a table for each and writes all figures as JSON."""
    arguments = _arguments()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    settings = {name: value for name, value in vars(arguments).items() if name != "json"}
    results: dict[str, object] = {"settings": settings | {"torch": torch.__version__}}
    for size in arguments.size:
        config, peers = _peers(size)
        figures = _measure(config, peers, arguments)
        _print(size, figures, arguments)
        results[size] = [asdict(figure) for figure in figures]
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps(results, indent=1) + "\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--size", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--frames", type=int, default=8, help="new frames per stream in a steady-state round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--ids-per-second", type=float, default=100.0, help="pace of a stream's ids (playback needs 82)"
    )
    parser.add_argument("--json", type=Path, default=Path(__file__).parent / "results" / "codec_streams.json")
    return parser.parse_args()


def _peers(size: str) -> tuple[SnacConfig, list[Peer]]:
    values = COMMON | SIZES[size]
    reference = SNAC(**values).eval()
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "config.json").write_text(json.dumps(values))
        torch.save(reference.state_dict(), Path(directory) / "pytorch_model.bin")
        decoder = SnacDecoder.load(directory)
        folded = SNAC.from_pretrained(directory)
    for module in list(folded.modules()):
        if parametrize.is_parametrized(module):
            parametrize.remove_parametrizations(module, "weight")
    config = decoder.config
    window, exact = COMPAT_WINDOW, first_audio_frames(config)
    return config, [
        Peer(name="snac, reference loop", context=COMPAT_CONTEXT, first=window, run=_reference_loop(reference, config)),
        Peer(name="snac, folded", context=COMPAT_CONTEXT, first=window, run=_reference_loop(folded, config)),
        Peer(name="compat", context=COMPAT_CONTEXT, first=window, run=_mode(decoder, decode_compat)),
        Peer(name="exact", context=context_frames(config), first=exact, run=_mode(decoder, decode_exact)),
    ]


def _reference_loop(model: SNAC, config: SnacConfig) -> Callable[[Tensor, int, int], None]:
    kept = slice(config.samples_per_frame, 2 * config.samples_per_frame)

    def run(codes: Tensor, position: int, context: int) -> None:
        for end in range(max(context, COMPAT_CONTEXT) + 1, codes.shape[1] + 1):
            for stream in range(codes.shape[0]):
                window = codes[stream : stream + 1, end - COMPAT_WINDOW : end]
                with torch.inference_mode():
                    samples = model.decode(codes_to_levels(window, config))
                to_pcm16(samples[0, 0, kept]).numpy().tobytes()

    return run


def _mode(
    decoder: SnacDecoder, decode: Callable[[SnacDecoder, list[Chunk]], list[Tensor]]
) -> Callable[[Tensor, int, int], None]:
    def run(codes: Tensor, position: int, context: int) -> None:
        chunks = [
            Chunk(codes=frames, position=position, context=context, final=False, seed=seed)
            for seed, frames in enumerate(codes)
        ]
        for samples in decode(decoder, chunks):
            to_pcm16(samples).numpy().tobytes()

    return run


def _measure(config: SnacConfig, peers: list[Peer], arguments: argparse.Namespace) -> list[Figures]:
    """Runs every peer in every round, in turn, after one round that is not counted."""
    longest = max(peer.context for peer in peers) + arguments.frames
    codes = torch.randint(0, config.codebook_size, (arguments.streams, longest, config.ids_per_frame))
    steady: dict[str, list[float]] = {peer.name: [] for peer in peers}
    alone: dict[str, list[float]] = {peer.name: [] for peer in peers}
    together: dict[str, list[float]] = {peer.name: [] for peer in peers}
    for _ in range(arguments.rounds + 1):
        for peer in peers:
            chunk = codes[:, : peer.context + arguments.frames]
            steady[peer.name].append(_seconds(peer, chunk, 100, peer.context, time.process_time))
            alone[peer.name].append(_seconds(peer, codes[:1, : peer.first], 0, 0, time.perf_counter))
            together[peer.name].append(_seconds(peer, codes[:, : peer.first], 0, 0, time.perf_counter))
    audio = arguments.streams * arguments.frames * config.samples_per_frame / config.sampling_rate
    baseline = statistics.median(steady[peers[0].name][1:])
    return [
        Figures(
            peer=peer.name,
            cpu_s_per_audio_s=statistics.median(steady[peer.name][1:]) / audio,
            speedup=baseline / statistics.median(steady[peer.name][1:]),
            ids_to_first_audio=peer.first * config.ids_per_frame,
            first_audio_ms_one_stream=1e3 * statistics.median(alone[peer.name][1:]),
            first_audio_ms_all_streams=1e3 * statistics.median(together[peer.name][1:]),
            first_audio_ms_at_rate=1e3
            * (
                peer.first * config.ids_per_frame / arguments.ids_per_second
                + statistics.median(together[peer.name][1:])
            ),
        )
        for peer in peers
    ]


def _seconds(peer: Peer, codes: Tensor, position: int, context: int, clock: Callable[[], float]) -> float:
    start = clock()
    peer.run(codes, position, context)
    return clock() - start


def _print(size: str, figures: list[Figures], arguments: argparse.Namespace) -> None:
    table = Table(title=f"SNAC {size}, {arguments.streams} streams, {arguments.frames} frames a chunk")
    columns = (
        "peer",
        "CPU s per s of audio",
        "times",
        "ids to first audio",
        "first audio, 1 stream (ms)",
        f"first audio, {arguments.streams} at once (ms)",
        f"with ids at {arguments.ids_per_second:.0f}/s (ms)",
    )
    for column in columns:
        table.add_column(column, justify="left" if column == "peer" else "right")
    for figure in figures:
        table.add_row(
            figure.peer,
            f"{figure.cpu_s_per_audio_s:.4f}",
            f"{figure.speedup:.2f}",
            str(figure.ids_to_first_audio),
            f"{figure.first_audio_ms_one_stream:.1f}",
            f"{figure.first_audio_ms_all_streams:.1f}",
            f"{figure.first_audio_ms_at_rate:.0f}",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
