"""The Walk Graph: nodes, and the primitives that walks are composed of.

Everything here is plain frozen data: comparable, serialisable, built without torch. Names connect things. A `Run`
reads signals by its node's input port names and writes signals by its output port names, unless it renames them;
`Sequential` and `Parallel` order runs; `Loop` and `DynamicLoop` repeat them; `Emit` hands a signal to the client;
a `StreamingEdge` joins an output port in one partition to an input port in another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from mstar_core.spec.chunks import ChunkPolicy
from mstar_core.spec.where import call_site

FLAG = "flag"
"""The dtype of a port that carries a host-side bool: a loop's stop signal."""

ANY = "any"
"""The dtype of a port that takes whatever comes; no type check is made."""


@dataclass(frozen=True, slots=True)
class Port:
    """One input or output of a node.

    `dtype` is a tensor dtype by its torch name (`int64`, `float32`, ...), `flag` for a host-side bool, or `any`.
    `shape` holds ints and symbols (`("frames", 7)`), None for any shape. A `sparse` output may be missing from a run:
    nothing then goes into its signal or stream. `tokens` is the axis that a KV node's prefill may be cut along, or
    None.
    """

    name: str
    dtype: str = ANY
    shape: tuple[int | str, ...] | None = None
    sparse: bool = False
    tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One model component, run by one engine. `factory` is used only inside the worker that runs the node.

    An `optional` node runs only where a placement names it, say to do a part of another node's work on a worker of its
    own. Elsewhere its runs are left out of the walks, and what they would write is missing: its outputs are sparse.
    """

    name: str
    engine: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    factory: str | Callable[..., Any]
    optional: bool = False
    where: str = field(default_factory=call_site, compare=False, repr=False)

    def input(self, name: str) -> Port | None:
        """The input port of that name, or None."""
        return next((port for port in self.inputs if port.name == name), None)

    def output(self, name: str) -> Port | None:
        """The output port of that name, or None."""
        return next((port for port in self.outputs if port.name == name), None)


@dataclass(frozen=True, slots=True)
class Param:
    """A number that the request decides: the value of one of its parameters, plus `offset`."""

    name: str
    offset: int = 0


Count: TypeAlias = "int | Param"
"""How often a loop runs: a number, or a request parameter."""


@dataclass(frozen=True, slots=True, init=False)
class Run:
    """One run of a node. `inputs` maps port to signal and `outputs` port to signal where the names differ."""

    node: str
    inputs: tuple[tuple[str, str], ...]
    outputs: tuple[tuple[str, str], ...]

    def __init__(
        self, node: str, inputs: Mapping[str, str] | None = None, outputs: Mapping[str, str] | None = None
    ) -> None:
        object.__setattr__(self, "node", node)
        object.__setattr__(self, "inputs", tuple((inputs or {}).items()))
        object.__setattr__(self, "outputs", tuple((outputs or {}).items()))


@dataclass(frozen=True, slots=True, init=False)
class Sequential:
    """Steps one after the other: the outputs of each are there for all that follow."""

    steps: tuple[Element, ...]

    def __init__(self, *steps: Element) -> None:
        object.__setattr__(self, "steps", steps)


@dataclass(frozen=True, slots=True, init=False)
class Parallel:
    """Branches that may all run at once; the element ends when every branch has."""

    branches: tuple[Element, ...]

    def __init__(self, *branches: Element) -> None:
        object.__setattr__(self, "branches", branches)


@dataclass(frozen=True, slots=True)
class Loop:
    """`body` run `times` times. A signal that the body both consumes and produces is carried from run to run.

    After the loop a signal holds the last run's value; one named in `gather` holds the list of every run's value.
    """

    body: Element
    times: Count
    gather: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StreamEnd:
    """The stop signal of a loop whose body consumes a stream: raised by the final chunk of `node`'s input `port`."""

    node: str
    port: str


@dataclass(frozen=True, slots=True)
class DynamicLoop:
    """`body` run until it raises the flag `until`, or `at_most` times.

    `at_most` may be None only for a `StreamEnd`: a stream ends with its producer.
    """

    body: Element
    at_most: Count | None
    until: str | StreamEnd
    gather: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Emit:
    """Send a signal's tensor to the client as it is produced, as `modality`."""

    signal: str
    modality: str


Element: TypeAlias = "Run | Sequential | Parallel | Loop | DynamicLoop | Emit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """A named phase of the model's behaviour.

    Walks of one partition run one after another for a request and share its signals: what one walk produced, a later
    one may consume. `reports` names flags that the state machine sees when the walk has ended.
    """

    name: str
    partition: str
    body: Element
    reports: tuple[str, ...] = ()
    where: str = field(default_factory=call_site, compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamingEdge:
    """Items that flow, one per run, from `source` (`node.port`) to `target` (`node.port`) in another partition.

    `capacity` bounds the consumer's buffer in items (default: four of the policy's longest chunks); a producer without
    credit waits. A consumer that `outlives` its producer keeps running on empty final chunks and ends by itself.
    """

    source: str
    target: str
    policy: ChunkPolicy
    capacity: int | None = None
    outlives: bool = False
    where: str = field(default_factory=call_site, compare=False, repr=False)

    @property
    def source_node(self) -> str:
        """The producing node's name."""
        return self.source.partition(".")[0]

    @property
    def source_port(self) -> str:
        """The producing port's name."""
        return self.source.partition(".")[2]

    @property
    def target_node(self) -> str:
        """The consuming node's name."""
        return self.target.partition(".")[0]

    @property
    def target_port(self) -> str:
        """The consuming port's name."""
        return self.target.partition(".")[2]

    @property
    def buffer_items(self) -> int:
        """The most items that the consumer's buffer holds."""
        return self.capacity if self.capacity is not None else 4 * self.policy.longest


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestInput:
    """Tensors that a request brings, by name: `many` of them, or one. Provided by the model's processor.

    `alternatives` are further shapes that one of them may have, by which a machine tells texts from pictures, say.
    """

    name: str
    dtype: str = ANY
    shape: tuple[int | str, ...] | None = None
    modality: str = "tensor"
    many: bool = False
    optional: bool = False
    alternatives: tuple[tuple[int | str, ...], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WalkSet:
    """What `mstar_walks` returns: the model's walks, its streaming edges, and what requests bring."""

    walks: tuple[Walk, ...]
    edges: tuple[StreamingEdge, ...] = ()
    inputs: tuple[RequestInput, ...] = ()


def runs(element: Element) -> Iterator[Run]:
    """Every `Run` below an element, in order."""
    match element:
        case Run():
            yield element
        case Sequential(steps):
            for step in steps:
                yield from runs(step)
        case Parallel(branches):
            for branch in branches:
                yield from runs(branch)
        case Loop() | DynamicLoop():
            yield from runs(element.body)
        case Emit():
            return
