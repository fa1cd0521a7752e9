from mstar_core.launch.backoff import FIRST_S, HEALTHY_S, MOST_S, Backoff


def test_waits_double_from_the_first_to_the_longest():
    backoff = Backoff()
    waits = [backoff.delay(healthy=0.0) for _ in range(10)]
    assert waits[:4] == [0.2, 0.4, 0.8, 1.6]
    assert waits == sorted(waits)
    assert waits[-2:] == [MOST_S, MOST_S]


def test_a_party_that_was_sound_for_long_begins_anew():
    backoff = Backoff()
    for _ in range(5):
        backoff.delay(healthy=0.0)
    assert backoff.delay(healthy=HEALTHY_S) == FIRST_S
    assert backoff.delay(healthy=0.0) == 2 * FIRST_S


def test_a_party_that_was_ready_for_a_moment_does_not_begin_anew():
    backoff = Backoff()
    backoff.delay(healthy=0.0)
    assert backoff.delay(healthy=HEALTHY_S - 1) == 2 * FIRST_S
