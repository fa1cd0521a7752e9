import pytest

from mstar_core.client.service import Service
from mstar_core.errors import InvalidRequest, PlacementError
from mstar_core.spec.content import Text
from mstar_core.spec.placement import parse_placement
from mstar_core.testing import scripted
from mstar_core.testing.plugins import registry_with

ELSEWHERE = """
address: tcp://127.0.0.1:0
hosts: {far: {address: tcp://127.0.0.1:7700}}
workers: {main: {host: far}}
"""


def start(text):
    return Service.start(["scripted"], registry=registry_with(scripted), placement=parse_placement(text, "place.yaml"))


def test_several_workers_of_one_process_serve_and_each_is_told_with_its_nodes():
    groups = "[{nodes: [reader, writer, counter], worker: a}, {nodes: [speaker], worker: b}]"
    with start(f"{{workers: {{a: {{}}, b: {{}}, idle: {{}}}}, groups: {groups}}}") as service:
        nodes = {name: set(worker.nodes["scripted"]) for name, worker in service.workers.items()}
        content = list(service.submit("scripted", [Text("hello")], {"items": 3}))
    assert nodes == {"a": {"reader", "writer", "counter"}, "b": {"speaker"}}
    assert sum(piece.samples.size for piece in content) == 3 * scripted.ITEM_SAMPLES


def test_a_model_without_an_omitted_node_makes_what_is_left():
    with start("models: {scripted: {omit: [speaker]}}") as service:
        assert service.models["scripted"].spec.card.outputs == ("tensor",)
        assert set(service.workers["main"].nodes["scripted"]) == {"reader", "writer", "counter"}
        with pytest.raises(InvalidRequest, match="makes tensor, not audio"):
            service.submit("scripted", [Text("hello")], {}, outputs=frozenset({"audio"}))


def test_hosts_are_refused_when_everything_is_in_one_process():
    with pytest.raises(PlacementError, match="the workers of one process are on its own host"):
        start(ELSEWHERE)


def test_a_mistake_in_a_placement_file_is_told_with_its_line_when_models_are_known():
    with pytest.raises(PlacementError, match=r"place\.yaml:2: groups\[0\]\.nodes: .* no node 'speeker'"):
        start("groups:\n- nodes: [speeker]\n")
