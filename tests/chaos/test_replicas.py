"""A node on two workers, one of which is killed: only its own requests end, and the other one serves new ones."""

from collections import Counter

import numpy as np

from mstar_core.errors import Unavailable
from mstar_core.media.pcm import to_pcm

REPLICAS = ("first", "second")

TWO_SPEAKERS = {
    "workers": {name: {"device": "cpu", "threads": 1} for name in ("writing", *REPLICAS)},
    "groups": [
        {"nodes": ["reader", "counter", "writer"], "worker": "writing"},
        {"nodes": ["speaker"], "worker": list(REPLICAS)},
    ],
}


def health(server):
    answer = server.http.get("/health")
    return answer.status_code, answer.json()["status"]


def load(server):
    return [server.metric("mstar_worker_load", worker=name) for name in REPLICAS]


def heard(ticket):
    """The pcm of a request, or what it failed with."""
    try:
        return to_pcm(np.concatenate([content.samples for content in ticket])).tobytes()
    except Unavailable as error:
        return error.message


def test_a_killed_replica_ends_its_own_requests_only(serve, pcm, eventually):
    with serve(TWO_SPEAKERS) as server:
        tickets = [server.submit(items=300, delay_ms=5, code=code, seed=code) for code in range(4)]
        assert eventually(lambda: load(server) == [2, 2])
        server.kill("worker first")
        assert eventually(lambda: health(server) == (200, "degraded"))
        assert server.speech(items=5, seed=9).content == pcm(5, seed=9)
        outcomes = [heard(ticket) for ticket in tickets]
        right = [outcome == pcm(300, code=code, seed=code) for code, outcome in enumerate(outcomes)]
        assert Counter(right) == {True: 2, False: 2}
        assert all("worker 'first'" in outcome for outcome, fine in zip(outcomes, right, strict=True) if not fine)
        assert eventually(lambda: health(server) == (200, "ready"))
        tickets = [server.submit(items=300, delay_ms=5, code=code, seed=code) for code in range(4)]
        assert eventually(lambda: load(server) == [2, 2])
        assert [heard(ticket) for ticket in tickets] == [pcm(300, code=code, seed=code) for code in range(4)]
        assert eventually(lambda: not server.unrest()), server.unrest()
