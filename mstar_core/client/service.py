"""The service: models being served, and the one way in for every face."""

from __future__ import annotations

import secrets
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from mstar_core.client.samples import Sample, samples_of
from mstar_core.client.ticket import Ticket
from mstar_core.errors import InvalidRequest, NotFound, PlacementError, RequestError, Unavailable, nearest
from mstar_core.plugins.assemble import assemble, locate
from mstar_core.plugins.registry import Registry, load_registry
from mstar_core.spec.content import Content, Prepared, Processor
from mstar_core.spec.model import ModelSpec
from mstar_core.spec.params import SEED, SEED_LIMIT, Parameter, check_parameters
from mstar_core.spec.placement import Placement, check_placement

if TYPE_CHECKING:
    from mstar_core.client.runtime import Runtime


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
    """Runs models in this process and takes requests for them from any thread.

    with Service.start(["speaker"]) as service:
        ticket = service.submit("speaker", [Text("Hello.")], {"seed": 1})
        for content in ticket: ...
    """

    def __init__(self, models: Mapping[str, ServedModel], runtime: Runtime) -> None:
        self.models = models
        self._runtime = runtime
        self._draining = False

    @classmethod
    def start(
        cls,
        models: Sequence[str],
        *,
        checkpoints: Mapping[str, str] | None = None,
        placement: Placement | None = None,
        registry: Registry | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> Service:
        """Load models and return once all are ready.

        `checkpoints` maps models to a checkpoint's name, directory or hub id (default: the card's first). `progress`
        is told what is being done. Raises `PluginError`, `CheckpointError`, `SpecError`, `PlacementError`, or
        `Unavailable` when a node cannot be loaded.
        """
        from mstar_core.client.runtime import Runtime
        from mstar_core.engines.build import CORE_ENGINES
        from mstar_core.worker.launch import ModelSource

        report = progress or _silent
        registry = registry or load_registry()
        placement = placement or Placement()
        served, sources = {}, []
        for name in dict.fromkeys(models):
            wanted = (checkpoints or {}).get(name) or placement.model(name).checkpoint
            report(f"reading {name}" + (f" from {wanted}" if wanted else ""))
            card = registry.card(name)
            directory = locate(card, wanted)
            spec = assemble(registry, name, directory)
            processor = registry.owner(name).processor(card, spec.config, directory)
            parameters = (*spec.config.parameters, SEED)
            served[name] = ServedModel(spec, parameters, processor, wanted or card.checkpoints[0].name)
            engines = {
                each.engine: registry.extension("mstar_engines", each.engine, CORE_ENGINES) for each in spec.nodes
            }
            sources.append(ModelSource(spec, directory, engines))
        check_placement(placement, [source.spec for source in sources])
        _refuse_unavailable(placement)
        report("loading weights")
        runtime = Runtime(sources, placement)
        try:
            runtime.wait_ready()
        except Unavailable:
            runtime.close()
            raise
        return cls(served, runtime)

    def submit(
        self,
        model: str,
        content: Sequence[Content],
        params: Mapping[str, Any],
        *,
        outputs: frozenset[str] | None = None,
        request_id: str | None = None,
    ) -> Ticket:
        """Check a request, prepare its tensors, and send it on its way.

        `outputs` are the modalities wanted (default: all that the model makes). Raises `NotFound`, `InvalidRequest`,
        `Conflict` or `Unavailable`; what only the Conductor knows is raised by the ticket's iteration. Does CPU work:
        in an event loop, call it from a thread.
        """
        if self._draining:
            raise Unavailable("the server is shutting down", retry_after=1.0)
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
        )

    def health(self) -> Health:
        """Whether requests would be served now."""
        ready = self._runtime.ready and not self._draining
        worker = self._runtime.worker
        workers = {worker.name: "ready" if self._runtime.ready else "failed"} if worker else {}
        return Health(live=True, ready=ready, models=self._runtime.models, workers=workers)

    def metrics(self) -> Sequence[Sample]:
        """Counters and gauges of frontend, worker and engines."""
        return samples_of(self._runtime)

    @property
    def open_requests(self) -> int:
        """Requests that have not ended."""
        return self._runtime.frontend.open_requests

    def drain(self, timeout: float) -> None:
        """Refuse new requests and wait, up to `timeout` seconds, for the running ones."""
        self._draining = True
        deadline = time.monotonic() + timeout
        while self.open_requests and time.monotonic() < deadline:
            time.sleep(0.02)

    def close(self) -> None:
        """Stop everything; requests still open end as unavailable."""
        self._draining = True
        self._runtime.close()

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _refuse_unavailable(placement: Placement) -> None:
    """Raise `PlacementError` for what a placement may say and one process does not do."""
    problems = []
    if len(placement.workers) > 1:
        problems.append(f"workers: {len(placement.workers)} are named; one process runs exactly one")
    for index, group in enumerate(placement.groups):
        if group.walks:
            problems.append(f"groups[{index}].walks: a node runs in one place for all walks; leave walks out")
        if group.tp > 1:
            problems.append(f"groups[{index}].tp: tensor parallelism over {group.tp} ranks is not available yet")
    if problems:
        raise PlacementError("\n".join(f"placement: {problem}" for problem in problems))


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
    return Prepared(inputs=inputs, params=prepared.params, outputs=outputs or prepared.outputs or made)
