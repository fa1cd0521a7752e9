"""From a model's name and a checkpoint to one `ModelSpec`, which is all that the runtime sees of a plugin."""

from __future__ import annotations

from pathlib import Path

from mstar_core.checkpoints import checkpoint_directory
from mstar_core.errors import CheckpointError
from mstar_core.plugins.registry import Registry
from mstar_core.spec.model import ModelCard, ModelSpec
from mstar_core.spec.validate import BUILT_IN_ENGINES, validate


def assemble(registry: Registry, model: str, checkpoint: Path) -> ModelSpec:
    """Ask the model's owner for config, nodes, walks and machine, and check them as a whole.

    `checkpoint` is a directory with the model's configuration; weights are not read. Raises `PluginError` when the
    model or one of its hooks is at fault, `CheckpointError` when the directory is, `SpecError` when parts do not fit.
    """
    owner = registry.owner(model)
    card = registry.card(model)
    config = owner.config(card, checkpoint)
    walks = owner.walks(card, config)
    spec = ModelSpec(
        card=card,
        config=config,
        nodes=owner.nodes(card, config),
        walks=walks.walks,
        edges=walks.edges,
        inputs=walks.inputs,
        machine=owner.state_machine(card, config),
    )
    engines = BUILT_IN_ENGINES | registry.extension_names("mstar_engines")
    validate(spec, source=f"plugin {owner.found.title}", engines=engines)
    return spec


def locate(card: ModelCard, wanted: str | None = None, *, weights: bool = True) -> Path:
    """The directory of a checkpoint of a model: a name on its card, a local directory or a hub id.

    None is the card's first checkpoint. `weights=False` is for those who need the configuration only.
    """
    if not card.checkpoints:
        raise CheckpointError(f"model {card.name!r} offers no checkpoint; its plugin's card must name one")
    if wanted is None:
        wanted = card.checkpoints[0].name
    chosen = [checkpoint for checkpoint in card.checkpoints if checkpoint.name == wanted] or card.checkpoints
    return checkpoint_directory(
        wanted,
        model=card.name,
        sources={checkpoint.name: checkpoint.source for checkpoint in card.checkpoints},
        extra_files=tuple(dict.fromkeys(pattern for checkpoint in chosen for pattern in checkpoint.files)),
        weights=weights,
    )
