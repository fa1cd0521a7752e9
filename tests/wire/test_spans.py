import hypothesis.strategies as st
from hypothesis import given, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mstar_core.wire.spans import Spans

LENGTH = 100


class Allocations(RuleBasedStateMachine):
    """Any sequence of allocations and frees."""

    def __init__(self):
        super().__init__()
        self.spans = Spans(LENGTH)
        self.taken = {}

    @rule(units=st.integers(1, LENGTH // 2))
    def allocate(self, units):
        gaps = "".join("x" if unit in self.units() else "." for unit in range(LENGTH)).split("x")
        start = self.spans.allocate(units)
        assert (start is None) == (max(map(len, gaps)) < units)
        if start is not None:
            assert not self.units() & set(range(start, start + units))
            assert start + units <= LENGTH
            self.taken[start] = units

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def free(self, data):
        start = data.draw(st.sampled_from(sorted(self.taken)))
        self.spans.free(start, self.taken.pop(start))

    @invariant()
    def holds_together(self):
        self.spans.check_integrity()
        assert self.spans.free_units == LENGTH - len(self.units())

    def teardown(self):
        for start, units in self.taken.items():
            self.spans.free(start, units)
        self.spans.check_integrity()
        assert self.spans.allocate(LENGTH) == 0

    def units(self):
        return {start + offset for start, units in self.taken.items() for offset in range(units)}


Allocations.TestCase.settings = settings(max_examples=50, stateful_step_count=40)

test_allocations_never_overlap_and_everything_coalesces_again = Allocations.TestCase


@given(st.integers(0, 10))
def test_spans_as_long_as_all_are_the_first_that_fit(length):
    spans = Spans(length)
    assert spans.allocate(length + 1) is None
    assert not length or spans.allocate(length) == 0
    assert spans.allocate(1) is None
