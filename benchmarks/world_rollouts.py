"""Rollouts and plans of the world model beside the reference's way of computing them, in alternating rounds.

    python benchmarks/world_rollouts.py [--grids 8,16] [--horizons 4,15,30] [--rounds 3] [--plans] [--json FILE]

The model is V-JEPA 2-AC's predictor at width 384, 6 layers, 6 heads, over latents of width 384, random float32 weights,
one request, one thread. *Uncached* puts the whole history through the predictor at every step under the frame-causal
mask and keeps the last frame, as facebookresearch/vjepa2 does: positions and rotations anew in every block, all frames
projected. *System* is M* as served, from the request to the last latents at the caller. Figures are CPU seconds of the
process; the limit is the quotient of floating point operations. Both peers' latents are compared before the clock runs.

With `--plans`: candidates per second of one refinement of two actions as the candidates grow, beside the reference's
way, one batch over all of them without a cache.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from mstar_vjepa import plugin
from mstar_vjepa.world.cem import candidates, draws, first_belief
from mstar_vjepa.world.config import AXES
from mstar_vjepa.world.pose import compose
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from mstar_core.client.engine import Engine
from mstar_core.spec.content import Tensor
from mstar_core.spec.placement import BatchPlace, KVPlace, NodeGroup, Placement, WorkerPlace
from mstar_core.testing.plugins import registry_with

Floats = NDArray[np.float32]

WIDTH, LAYERS, HEADS, MLP = 384, 6, 6, 1536
HEAD_DIM = WIDTH // HEADS
CONDITIONS = 2
EPS, LATENT_EPS = 1e-6, 1e-5
TARGETS = {(8, 4): 2.3, (8, 15): 6.5, (8, 30): 12.5, (16, 30): 15.0}
PLAN_HORIZON = 2


def write_checkpoint(directory: Path, grid: int) -> dict[str, torch.Tensor]:
    """A checkpoint of `grid` x `grid` patches with random weights, in Meta's layout; its predictor's tensors."""
    generator = torch.Generator().manual_seed(0)

    def linear(name: str, inputs: int, outputs: int) -> dict[str, torch.Tensor]:
        weight = torch.randn(outputs, inputs, generator=generator) * 0.02
        return {f"{name}.weight": weight, f"{name}.bias": torch.zeros(outputs)}

    def norm(name: str) -> dict[str, torch.Tensor]:
        return {f"{name}.weight": torch.ones(WIDTH), f"{name}.bias": torch.zeros(WIDTH)}

    def block(name: str) -> dict[str, torch.Tensor]:
        attention = linear(f"{name}.attn.qkv", WIDTH, 3 * WIDTH) | linear(f"{name}.attn.proj", WIDTH, WIDTH)
        mlp = linear(f"{name}.mlp.fc1", WIDTH, MLP) | linear(f"{name}.mlp.fc2", MLP, WIDTH)
        return norm(f"{name}.norm1") | attention | norm(f"{name}.norm2") | mlp

    kernel = torch.zeros(WIDTH, 3, 2, 16, 16)
    encoder = {"patch_embed.proj.weight": kernel, "patch_embed.proj.bias": kernel[:, 0, 0, 0, 0].clone()}
    encoder |= norm("norm") | block("blocks.0")
    predictor = linear("predictor_embed", WIDTH, WIDTH) | norm("predictor_norm")
    predictor |= linear("predictor_proj", WIDTH, WIDTH)
    for name, numbers in (("action", 7), ("state", 7), ("extrinsics", 6)):
        predictor |= linear(f"{name}_encoder", numbers, WIDTH)
    for layer in range(LAYERS):
        predictor |= block(f"predictor_blocks.{layer}")
    torch.save({"encoder": encoder, "predictor": predictor}, directory / "world.pt")
    tower = {"num_heads": HEADS, "mlp_hidden": MLP, "layer_norm_eps": EPS}
    pictures = {"img_height": 16 * grid, "img_width": 16 * grid, "patch_size": 16, "tubelet_size": 2, "in_chans": 3}
    motion = {"action_embed_dim": 7, "state_dim": 7, "use_extrinsics": False}
    config = {
        "model_type": "vjepa2_ac",
        "encoder": pictures | tower | {"embed_dim": WIDTH, "depth": 1},
        "predictor": motion | tower | {"predictor_embed_dim": WIDTH, "depth": LAYERS},
        "world_model": {"normalize_reps": True, "rep_layer_norm_eps": LATENT_EPS},
    }
    (directory / "config.json").write_text(json.dumps(config))
    return predictor


class UncachedPeer:
    """The reference's computation in plain torch: the whole history at every step."""

    name = "uncached"

    def __init__(self, weights: Mapping[str, torch.Tensor], grid: int, longest: int) -> None:
        self._weights = weights
        self._grid = grid
        frame = torch.arange(longest).repeat_interleave(CONDITIONS + grid * grid)
        self._mask = frame[:, None] >= frame[None]  # [tokens, tokens], true: may attend

    def rollout(self, start: Floats, pose: Floats, actions: Floats) -> Floats:
        """Latents `[rollouts, steps, tokens, width]` from `[tokens, width]` and actions `[rollouts, steps, 7]`."""
        with torch.inference_mode():
            return self._rollout(start, pose, actions)

    def _rollout(self, start: Floats, pose: Floats, actions: Floats) -> Floats:
        rollouts, steps = actions.shape[:2]
        frames = torch.from_numpy(start).expand(rollouts, 1, -1, -1)  # [rollouts, frames, tokens, width]
        poses = np.broadcast_to(pose, (rollouts, 1, 7))
        for step in range(steps):
            known = torch.from_numpy(actions[:, : step + 1])
            predicted = self._predict(frames, known, torch.tensor(poses))[:, -1:]
            frames = torch.cat([frames, F.layer_norm(predicted, (WIDTH,), eps=LATENT_EPS)], dim=1)
            poses = np.concatenate([poses, compose(poses[:, -1:], actions[:, step : step + 1])], axis=1)
        result: Floats = frames[:, 1:].numpy()
        return result

    def refine(self, start: Floats, pose: Floats, goal: Floats, samples: int) -> Floats:
        """Energies `[samples]` of one refinement: all candidates in one batch."""
        params = {"horizon": PLAN_HORIZON, "maxnorm": 0.05, "close_gripper": None, **dict.fromkeys(AXES)}
        tried = candidates(first_belief(params), draws(0, 0, PLAN_HORIZON, samples), params)
        energies: Floats = np.abs(self.rollout(start, pose, tried)[:, -1] - goal).mean((1, 2))
        return energies

    def _predict(self, frames: torch.Tensor, actions: torch.Tensor, poses: torch.Tensor) -> torch.Tensor:
        """What follows each frame, `[rollouts, frames, tokens, width]`."""
        rollouts, count = frames.shape[:2]
        tokens = [
            self._linear("action_encoder", actions)[:, :, None],
            self._linear("state_encoder", poses)[:, :, None],
            self._linear("predictor_embed", frames),
        ]
        x = torch.cat(tokens, dim=2).flatten(1, 2)  # [rollouts, frames * slot, width]
        mask = self._mask[: x.shape[1], : x.shape[1]]
        for layer in range(LAYERS):
            name = f"predictor_blocks.{layer}"
            x = x + self._attention(f"{name}.attn", self._norm(f"{name}.norm1", x), count, mask)
            hidden = F.gelu(self._linear(f"{name}.mlp.fc1", self._norm(f"{name}.norm2", x)))
            x = x + self._linear(f"{name}.mlp.fc2", hidden)
        patches = x.view(rollouts, count, -1, WIDTH)[:, :, CONDITIONS:]
        return self._linear("predictor_proj", self._norm("predictor_norm", patches))

    def _attention(self, name: str, x: torch.Tensor, count: int, mask: torch.Tensor) -> torch.Tensor:
        heads = self._linear(f"{name}.qkv", x).view(*x.shape[:2], 3, HEADS, HEAD_DIM).permute(2, 0, 3, 1, 4)
        queries, keys, values = heads.unbind(0)  # [rollouts, heads, tokens, head_dim] each
        queries, keys = self._rotate(queries, count), self._rotate(keys, count)
        out = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
        return self._linear(f"{name}.proj", out.transpose(1, 2).flatten(2))

    def _rotate(self, x: torch.Tensor, count: int) -> torch.Tensor:
        """Patches turn with time, row and column; actions and poses with time alone."""
        split = x.reshape(*x.shape[:2], count, -1, HEAD_DIM)  # [rollouts, heads, frames, slot, head_dim]
        part = HEAD_DIM // 3 // 2 * 2
        frame, row, column = torch.meshgrid(
            torch.arange(count), torch.arange(self._grid), torch.arange(self._grid), indexing="ij"
        )
        patches = split[..., CONDITIONS:, :]
        turned = [
            _turn(patches[..., axis * part : (axis + 1) * part], places.reshape(count, -1))
            for axis, places in enumerate((frame, row, column))
        ]
        patches = torch.cat([*turned, patches[..., 3 * part :]], dim=-1)
        still = split[..., :CONDITIONS, :]
        times = torch.arange(count)[:, None].expand(-1, CONDITIONS)
        still = torch.cat([_turn(still[..., :part], times), still[..., part:]], dim=-1)
        return torch.cat([still, patches], dim=3).flatten(2, 3)

    def _linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self._weights[f"{name}.weight"], self._weights[f"{name}.bias"])

    def _norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, (WIDTH,), self._weights[f"{name}.weight"], self._weights[f"{name}.bias"], EPS)


def _turn(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Turn neighbouring channels of `[..., frames, n, part]` by tiled angles of positions `[frames, n]`."""
    pairs = x.shape[-1] // 2
    angles = positions[..., None] * 10000.0 ** -(torch.arange(pairs) / pairs)  # [frames, n, pairs]
    cos, sin = angles.cos().repeat(1, 1, 2), angles.sin().repeat(1, 1, 2)
    first, second = x.reshape(*x.shape[:-1], pairs, 2).unbind(-1)
    return x * cos + torch.stack([-second, first], dim=-1).flatten(-2) * sin


class SystemPeer:
    """M* in one process, from the request to the last latents at the caller."""

    name = "system"

    def __init__(self, directory: Path, kv_tokens: int, batch_tokens: int = 2048) -> None:
        group = NodeGroup(nodes=("world",), kv=KVPlace(tokens=kv_tokens), batch=BatchPlace(tokens=batch_tokens))
        placement = Placement(workers={"main": WorkerPlace(device="cpu", threads=1)}, groups=(group,))
        registry = registry_with(plugin)
        self.engine = Engine(plugin.WORLD, checkpoint=directory, placement=placement, registry=registry)

    def rollout(self, start: Floats, pose: Floats, actions: Floats) -> Floats:
        """As the uncached peer."""
        content = [Tensor("latents", start), Tensor("states", pose), Tensor("actions", actions)]
        made = self.engine.stream(content)
        latents = [each.array for each in made if isinstance(each, Tensor) and each.name == "latents"]
        return np.stack(latents, axis=1)

    def refine(self, start: Floats, pose: Floats, goal: Floats, samples: int) -> Floats:
        """Energies `[samples]` of one refinement."""
        content = [Tensor("latents", start), Tensor("states", pose), Tensor("goal_latents", goal)]
        plan = {"samples": samples, "topk": 2, "refinements": 1, "horizon": PLAN_HORIZON}
        result = self.engine.generate(content, task="plan", seed=0, **plan)  # type: ignore[arg-type]
        energies: Floats = result.tensors["energies"][0]  # of the one refinement
        return energies

    def close(self) -> None:
        """Stop it."""
        self.engine.close()


@dataclass(frozen=True, slots=True)
class Measured:
    """Medians over rounds of one comparison. `size` is the horizon, or the number of candidates."""

    what: str
    grid: int
    size: int
    uncached_cpu_s: float
    system_cpu_s: float
    system_wall_s: float
    limit: float

    @property
    def ratio(self) -> float:
        """How many times less CPU the system takes."""
        return self.uncached_cpu_s / self.system_cpu_s


def limit(grid: int, horizon: int) -> float:
    """Floating point operations of the uncached loop over those with a cache."""
    slot = CONDITIONS + grid * grid
    linear = slot * LAYERS * (8 * WIDTH * WIDTH + 4 * WIDTH * MLP)  # of one slot
    attention = 4 * slot * slot * LAYERS * WIDTH  # of one slot's queries and one slot's keys
    steps = range(1, horizon + 1)
    return sum(linear * t + attention * t * t for t in steps) / sum(linear + attention * t for t in steps)


def timed(run: Callable[[], Any]) -> tuple[float, float]:
    """Wall and CPU seconds of the process."""
    wall, cpu = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - wall, time.process_time() - cpu


def compare(
    what: str, grid: int, size: int, peers: Sequence[Callable[[], Floats]], rounds: int, limit: float
) -> Measured:
    """The uncached peer and the system in turn, after one run of each whose results must agree."""
    results = [peer() for peer in peers]
    np.testing.assert_allclose(results[1], results[0], atol=2e-3, rtol=2e-3)
    taken = [[timed(peer) for peer in peers] for _ in range(rounds)]
    uncached = statistics.median(pair[0][1] for pair in taken)
    wall, cpu = (statistics.median(pair[1][axis] for pair in taken) for axis in (0, 1))
    return Measured(what, grid, size, uncached, cpu, wall, limit)


def scene(grid: int, steps: int) -> tuple[Floats, Floats, Floats, Floats]:
    """An observed frame, its pose, actions `[1, steps, 7]` and a goal."""
    generator = np.random.default_rng(1)
    start, goal = generator.standard_normal((2, grid * grid, WIDTH), np.float32)
    pose, action = generator.standard_normal((2, 7), np.float32) * np.float32(0.1)
    return start, pose, np.tile(action, (1, steps, 1)), goal


def measure_rollouts(directory: Path, grid: int, horizons: Sequence[int], rounds: int) -> list[Measured]:
    """Rollouts of one request at each horizon."""
    longest = max(horizons)
    uncached = UncachedPeer(write_checkpoint(directory, grid), grid, longest)
    measured = []
    with closing(SystemPeer(directory, kv_tokens=(longest + 1) * (CONDITIONS + grid * grid))) as system:
        for horizon in horizons:
            start, pose, actions, _ = scene(grid, horizon)
            peers = [partial(peer.rollout, start, pose, actions) for peer in (uncached, system)]
            measured.append(compare("rollout", grid, horizon, peers, rounds, limit(grid, horizon)))
    return measured


def measure_plans(directory: Path, grid: int, samples: Sequence[int], rounds: int) -> list[Measured]:
    """One refinement of two actions at each number of candidates."""
    slot = CONDITIONS + grid * grid
    uncached = UncachedPeer(write_checkpoint(directory, grid), grid, PLAN_HORIZON)
    start, pose, _, goal = scene(grid, PLAN_HORIZON)
    measured = []
    with closing(SystemPeer(directory, kv_tokens=(PLAN_HORIZON + 1) * slot * max(samples) + 4096)) as system:
        for count in samples:
            peers = [partial(each.refine, start, pose, goal, count) for each in (uncached, system)]
            measured.append(compare("plan", grid, count, peers, rounds, limit(grid, PLAN_HORIZON)))
    return measured


def table(results: Sequence[Measured]) -> Table:
    """Each comparison with its ratio, its target and the limit."""
    shown = Table(
        "",
        "grid",
        "size",
        "uncached CPU s",
        "system CPU s",
        "system wall s",
        "ratio",
        "target",
        "limit",
        "candidates/s",
    )
    for each in results:
        target = TARGETS.get((each.grid, each.size)) if each.what == "rollout" else None
        shown.add_row(
            each.what,
            f"{each.grid}x{each.grid}",
            str(each.size),
            f"{each.uncached_cpu_s:.3f}",
            f"{each.system_cpu_s:.3f}",
            f"{each.system_wall_s:.3f}",
            f"{each.ratio:.2f}",
            "" if target is None else f"{target:.1f}",
            f"{each.limit:.2f}",
            f"{each.size / each.system_cpu_s:.0f} / {each.size / each.uncached_cpu_s:.0f}"
            if each.what == "plan"
            else "",
        )
    return shown


def main() -> None:
    """Measure and print; write JSON when asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--grids", default="8,16")
    parser.add_argument("--horizons", default="4,15,30")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--plans", action="store_true", help="measure candidates of plans instead of rollouts")
    parser.add_argument("--samples", default="2,4,16,64,256")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    measure = measure_plans if arguments.plans else measure_rollouts
    sizes = [int(each) for each in (arguments.samples if arguments.plans else arguments.horizons).split(",")]
    results: list[Measured] = []
    for grid in map(int, arguments.grids.split(",")):
        with tempfile.TemporaryDirectory() as directory:
            results += measure(Path(directory), grid, sizes, arguments.rounds)
    Console().print(table(results))
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps([asdict(each) for each in results], indent=2) + "\n")


if __name__ == "__main__":
    main()
