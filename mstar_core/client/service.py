"""The service: models being served, and the one way in for every face."""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mstar_core.client.runtime import Runtime
from mstar_core.client.ticket import Ticket
from mstar_core.errors import InvalidRequest, NotFound, RequestError, Unavailable, nearest
from mstar_core.launch.plan import Chosen, process_plan, thread_plan
from mstar_core.plugins.assemble import assemble, locate
from mstar_core.plugins.registry import Registry, load_registry
from mstar_core.spec.content import Content, Prepared, Processor
from mstar_core.spec.model import ModelSpec
from mstar_core.spec.params import SEED, SEED_LIMIT, Parameter, check_parameters
from mstar_core.spec.placed import as_placed
from mstar_core.spec.placement import Placement, check_placement
from mstar_core.wire.messages import Sample, WorkerState


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model as faces see it. `parameters` are the model's own and core's `seed`."""

    spec: ModelSpec
    parameters: tuple[Parameter, ...]
    processor: Processor
    checkpoint: str


@dataclass(frozen=True, slots=True)
class Health:
    """`live`: the process answers. `ready`: every model does. `models` and `workers` say `ready`, or why not."""

    live: bool
    ready: bool
    models: Mapping[str, str]
    workers: Mapping[str, str] = field(default_factory=dict)


class Service:
    """Runs models, in this process or in others, and takes requests for them from any thread.

    with Service.start(["speaker"]) as service:
        ticket = service.submit("speaker", [Text("Hello.")], {"seed": 1})
        for content in ticket: ...
    """

    def __init__(self, models: Mapping[str, ServedModel], runtime: Runtime) -> None:
        self.models = models
        self._runtime = runtime
        self._closed = False

    @classmethod
    def start(
        cls,
        models: Sequence[str],
        *,
        checkpoints: Mapping[str, str] | None = None,
        placement: Placement | None = None,
        registry: Registry | None = None,
        progress: Callable[[str], None] | None = None,
        processes: bool = False,
        trace: Path | None = None,
        keys: Path | None = None,
        start_timeout: float = 600.0,
        log_format: str = "text",
        log_level: str = "info",
    ) -> Service:
        """Load models and return once all are ready.

        `checkpoints` maps models to a checkpoint's name, directory or hub id (default: the card's first). `progress`
        is told what is being done. With `processes` Conductor and workers are processes, which log to standard error in
        `log_format` from `log_level` on, and this one never imports torch; they see the plugins that are installed.
        `keys` is the key file that workers on other hosts have too. Requests and batches are written to `trace`. Raises
        `PluginError`, `CheckpointError`, `SpecError`, `PlacementError`, `ConfigurationError`, or `Unavailable` when
        something cannot be started, or is not ready after `start_timeout` seconds.
        """
        report = progress or _silent
        registry = registry or load_registry()
        placement = placement or Placement()
        chosen = [
            _choose(registry, name, (checkpoints or {}).get(name) or placement.model(name).checkpoint, report)
            for name in dict.fromkeys(models)
        ]
        check_placement(placement, [each.spec for each in chosen])
        chosen = [replace(each, spec=as_placed(each.spec, placement)) for each in chosen]
        served = {each.spec.card.name: _served(registry, each) for each in chosen}
        report("loading weights")
        if processes:
            plan = partial(process_plan, registry, chosen, placement, keys=keys, logs=(log_format, log_level))
        else:
            plan = partial(thread_plan, registry, chosen, placement)
        return cls(served, Runtime(plan, list(served), keys=keys, trace=trace, start_timeout=start_timeout))

    def submit(
        self,
        model: str,
        content: Sequence[Content],
        params: Mapping[str, Any],
        *,
        outputs: frozenset[str] | None = None,
        request_id: str | None = None,
        timeout: float | None = None,
    ) -> Ticket:
        """Check a request, prepare its tensors, and send it on its way.

        `outputs` are the modalities wanted (default: those that the processor chooses, or all that the model makes);
        after `timeout` seconds the request fails (default: the model's own deadline). Raises `NotFound`,
        `InvalidRequest`, `Conflict` or `Unavailable`; what only the Conductor knows is raised by the ticket's
        iteration. Does CPU work: in an event loop, call it from a thread.
        """
        if self._closed:
            raise Unavailable("the server has stopped")
        served = self.models.get(model)
        if served is None:
            hint = nearest(model, self.models)
            raise NotFound(f"no model {model!r} is served here{hint}; served: {', '.join(self.models)}", param="model")
        checked = check_parameters(served.parameters, params)
        seed = checked.pop(SEED.name)
        prepared = served.processor.prepare(content, checked)
        prepared = _complete(served.spec, prepared, outputs)
        return self._runtime.frontend.submit(
            request_id or uuid.uuid4().hex,
            model,
            prepared,
            secrets.randbelow(SEED_LIMIT) if seed is None else seed,
            served.processor.render(prepared),
            timeout,
        )

    def health(self) -> Health:
        """Whether requests would be served now, as the Conductor last said."""
        state = self._runtime.state
        return Health(
            live=True,
            ready=state.ready and not self._closed,
            models=state.models,
            workers={name: worker.state for name, worker in state.workers.items()},
        )

    @property
    def workers(self) -> Mapping[str, WorkerState]:
        """What each worker runs, and how much memory it has taken."""
        return self._runtime.state.workers

    def metrics(self) -> Sequence[Sample]:
        """What frontend, Conductor, workers and engines count. Waits for their answers: not for an event loop."""
        return self._runtime.metrics()

    @property
    def open_requests(self) -> int:
        """Requests that have not ended."""
        return self._runtime.frontend.open_requests

    def close(self) -> None:
        """Stop everything; requests still open end as unavailable."""
        self._closed = True
        self._runtime.close()

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _choose(registry: Registry, name: str, wanted: str | None, report: Callable[[str], None]) -> Chosen:
    """Find a model's checkpoint and assemble the model."""
    report(f"reading {name}" + (f" from {wanted}" if wanted else ""))
    directory = locate(registry.card(name), wanted)
    return Chosen(assemble(registry, name, directory), directory, wanted)


def _served(registry: Registry, chosen: Chosen) -> ServedModel:
    """Make the model's processor."""
    spec = chosen.spec
    processor = registry.owner(spec.card.name).processor(spec.card, spec.config, chosen.directory)
    checkpoint = chosen.wanted or spec.card.checkpoints[0].name
    return ServedModel(spec, (*spec.config.parameters, SEED), processor, checkpoint)


def _silent(_: str) -> None:
    """Progress that nobody asked for."""


def _complete(spec: ModelSpec, prepared: Prepared, outputs: frozenset[str] | None) -> Prepared:
    """Settle the wanted modalities, and hold the processor to what the model declares."""
    made = frozenset(spec.card.outputs)
    if outputs is not None and not outputs <= made:
        wrong = ", ".join(sorted(outputs - made))
        raise InvalidRequest(f"model {spec.card.name!r} makes {', '.join(sorted(made))}, not {wrong}", param="outputs")
    declared = {each.name: each for each in spec.inputs}
    for name, arrays in prepared.inputs.items():
        if name not in declared or (len(arrays) > 1 and not declared[name].many):
            raise RequestError(f"the processor of {spec.card.name!r} gave {len(arrays)} of an input {name!r}")
    for each in declared.values():
        if not each.optional and not prepared.inputs.get(each.name):
            raise RequestError(f"the processor of {spec.card.name!r} gave no input {each.name!r}")
    inputs = {name: [np.asarray(array, order="C") for array in arrays] for name, arrays in prepared.inputs.items()}
    return Prepared(inputs=inputs, params=prepared.params, outputs=outputs or prepared.outputs & made or made)
