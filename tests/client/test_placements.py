import pytest

from mstar_core.client.service import Service
from mstar_core.errors import PlacementError
from mstar_core.spec.placement import parse_placement
from mstar_core.testing import scripted
from mstar_core.testing.plugins import registry_with


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("workers: {a: {}, b: {}}", "workers: 2 are named; one process runs exactly one"),
        ("groups: [{nodes: [writer], walks: [write]}]", "groups[0].walks: a node runs in one place for all walks"),
        ("groups: [{nodes: [writer], tp: 2}]", "groups[0].tp: tensor parallelism over 2 ranks is not available yet"),
    ],
)
def test_what_one_process_does_not_do_is_refused_and_not_ignored(text, problem):
    with pytest.raises(PlacementError) as raised:
        Service.start(["scripted"], registry=registry_with(scripted), placement=parse_placement(text, "place.yaml"))
    assert problem in str(raised.value)
