"""A thousand requests of every kind, while clients leave, stall and err, nodes raise, and processes are killed.

Every request has a code and a seed of its own, so that what comes back tells whose it is. What is refused because a
party is away is asked again, as the server says, until it is answered.
"""

import base64
import json
import random
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, IncompleteRead
from typing import TypeAlias

import httpx
import numpy as np
import pytest

from mstar_core.media.pcm import to_pcm

CLIENTS = 16
PATIENCE_S = 60.0
TRIES = 60

SPEECH, GENERATE = "/v1/audio/speech", "/generate"
LONG_TEXT = "All work and no play. " * 100
"""As a tensor, eight bytes a character, it goes through shared memory."""

MANY_ROUNDS = 2100
"""So do the counts of so many rounds."""

TO_BE_COMPLETE = ("plain", "counting", "slow")
"""The kinds of orders whose answers come to their end."""

ENDLESS = {"items": 100_000, "max_items": 100_000}
WAYS = ("whole", "chunked", "events", "generated", "generated events")

BAD = (
    (SPEECH, b'{"model": "scripted", "input": ', None),
    (SPEECH, {"model": "scripted", "input": "  \n"}, "input"),
    (SPEECH, {"model": "scripted", "input": "Hello.", "pitch": 3}, "pitch"),
    (SPEECH, {"model": "scripted", "input": ["Hello."]}, "input"),
    (SPEECH, {"model": "scripted", "input": "Hello.", "items": "five"}, "items"),
    (GENERATE, {"model": "scripted", "input": "Hello.", "parameters": {"code": 1.5}}, "parameters.code"),
    (GENERATE, {"model": "scripted", "input": "Hello.", "parameters": {"seed": 2**63}}, "parameters.seed"),
    (GENERATE, {"model": "scripted", "input": ""}, "input"),
    (GENERATE, [], None),
)
"""Path, body, and the field that the refusal has to name."""


Times: TypeAlias = Sequence[tuple[float, float]]


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What a client saw: the status (0: none), the content it got, whether the answer was complete, or the error."""

    status: int
    content: dict[str, bytes] = field(default_factory=dict, repr=False)
    complete: bool = False
    error: dict = field(default_factory=dict)
    retry_after: str | None = None


@dataclass(frozen=True, kw_only=True)
class Order:
    """One request: of which kind, how it is asked, and its parameters."""

    kind: str
    way: str = "whole"
    text: str = field(default="Hello.", repr=False)
    params: dict = field(default_factory=dict)
    bad: int = 0

    def is_settled_by(self, reply: Reply) -> bool:
        """Whether it need not be placed again, as it must when a party is away; a chunked body can then only end."""
        broken_off = reply.status == 200 and not reply.complete and not reply.error
        return reply.error.get("code") != "unavailable" and not (broken_off and self.kind in TO_BE_COMPLETE)

    def request(self) -> tuple[str, bytes]:
        """Path and body."""
        if self.kind == "bad":
            path, body, _ = BAD[self.bad]
            return path, body if isinstance(body, bytes) else json.dumps(body).encode()
        fields: dict = {"model": "scripted", "input": self.text}
        if self.way.startswith("generated"):
            fields |= {"parameters": self.params, "stream": self.way == "generated events"}
            return GENERATE, json.dumps(fields).encode()
        stream = {"stream": True} if self.way == "chunked" else {"stream_format": "sse"} if self.way == "events" else {}
        return SPEECH, json.dumps({**fields, **self.params, **stream, "response_format": "pcm"}).encode()


@dataclass(frozen=True, kw_only=True)
class Attempt:
    order: Order
    reply: Reply
    started: float
    ended: float

    def overlaps(self, times: Times) -> bool:
        return any(self.started <= end and start <= self.ended for start, end in times)


def all_of_it(answer: httpx.Response) -> Iterator[bytes]:
    return answer.iter_raw()


def its_first_piece(answer: httpx.Response) -> Iterator[bytes]:
    yield next(answer.iter_raw(), b"")


def slowly(answer: httpx.Response) -> Iterator[bytes]:
    for piece in answer.iter_raw():
        time.sleep(0.02)
        yield piece


def ask(http: httpx.Client, order: Order, read: Callable = all_of_it, **options) -> Reply:
    """Send an order, and read what `read` wants of the answer."""
    path, body = order.request()
    received, broken, status, headers = b"", False, 0, {}
    try:
        with http.stream("POST", path, content=body, headers={"content-type": "application/json"}, **options) as answer:
            status, headers = answer.status_code, answer.headers
            for piece in read(answer):
                received += piece
    except httpx.TransportError:
        broken = True
    retry_after = headers.get("retry-after")
    if status == 200:
        content, complete, error = got(order.way, received, broken or order.kind == "gone after a piece")
        return Reply(status=status, content=content, complete=complete, error=error)
    error = json.loads(received)["error"] if status else {}
    return Reply(status=status, error=error, retry_after=retry_after)


def ask_and_stall(url: str, order: Order, enough: Callable[[], bool]) -> Reply:
    """Send an order, and take nothing but the beginning of its answer until `enough` holds."""
    where, (path, body) = httpx.URL(url), order.request()
    http = HTTPConnection(where.host, where.port)
    http.sock = socket.socket()
    http.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    http.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)  # by which the server's system sizes its buffer
    with closing(http):
        http.sock.connect((where.host, where.port))
        http.request("POST", path, body, {"content-type": "application/json"})
        answer = http.getresponse()
        received, broken = answer.read(1), False
        deadline = time.monotonic() + PATIENCE_S
        while not enough() and time.monotonic() < deadline:
            time.sleep(0.5)
        try:
            received += answer.read()
        except IncompleteRead as error:
            received, broken = received + error.partial, True
        content, complete, error = got(order.way, received, broken)
        return Reply(status=answer.status, content=content, complete=complete, error=error)


def got(way: str, body: bytes, broken: bool) -> tuple[dict[str, bytes], bool, dict]:
    """The content, the completeness, and the error in a body that began well."""
    if way in ("whole", "chunked"):
        return content_of(audio=body), not broken, {}
    if way == "generated":
        return ({}, False, {}) if broken else (content_of(json.loads(body)["outputs"]), True, {})
    events = [block.split(b"\ndata: ") for block in body.split(b"\n\n")[:-1] if not block.startswith(b":")]
    told = [(name.removeprefix(b"event: ").decode(), json.loads(data)) for name, data in events]
    if way == "events":
        deltas = (base64.b64decode(data["audio"]) for name, data in told if name == "speech.audio.delta")
        content = content_of(audio=b"".join(deltas))
    else:
        content = content_of(data for name, data in told if name == "output")
    last, data = told[-1] if told else ("", {})
    return content, last in ("speech.audio.done", "end") and not broken, data["error"] if last == "error" else {}


def content_of(parts: Iterable[dict] = (), audio: bytes = b"") -> dict[str, bytes]:
    """The pcm, and the counts of the counting loop: two workers emit them, in no certain order."""
    content = {"audio": audio, "tensor": b""}
    for part in parts:
        data = base64.b64decode(part["data"])
        content[part["type"]] += to_pcm(np.frombuffer(data, "<f4")).tobytes() if part["type"] == "audio" else data
    return content


def orders(rng: random.Random, counts: dict[str, int]) -> list[Order]:
    """So many of each kind, in any order, each with a code and a seed of its own."""
    kinds = [kind for kind, count in counts.items() for _ in range(count)]
    rng.shuffle(kinds)
    return [order(rng, kind, code) for code, kind in enumerate(kinds)]


def order(rng: random.Random, kind: str, code: int) -> Order:
    params = {
        "code": code,
        "seed": rng.randrange(2**63),
        "items": rng.randrange(13),
        "delay_ms": rng.choice((0, 0, 1, 2)),
    }
    way, text = rng.choice(WAYS), rng.choice(("Hello.", LONG_TEXT))
    if kind == "failing":
        node = rng.choice(("reader", "writer", "speaker"))
        params |= {"items": 9, "fail": node, "fail_at": 0 if node == "reader" else rng.randrange(5)}
    elif kind == "counting":
        params |= {"rounds": MANY_ROUNDS}
        way = rng.choice(("generated", "generated events"))
    elif kind == "gone at once":
        params |= {**ENDLESS, "delay_ms": 2}
        way = rng.choice(("whole", "generated"))
    elif kind == "gone after a piece":
        params |= {**ENDLESS, "delay_ms": 2}
        way = rng.choice(("chunked", "events", "generated events"))
    elif kind == "slow":
        params |= {"items": 400, "delay_ms": 0}
        way = rng.choice(("chunked", "events", "generated events"))
    return Order(kind=kind, way=way, text=text, params=params, bad=rng.randrange(len(BAD)))


class Storm:
    """Orders, the clients that place them, and what came of it.

    `away` are the times from the end of a party until the server is whole again, `health` the answers to a client that
    asks for it all the time.
    """

    def __init__(self, server, todo: list[Order]) -> None:
        self.attempts: list[Attempt] = []
        self.away: list[tuple[float, float]] = []
        self.health: list[Attempt] = []
        self._server = server
        self._todo = deque(todo)
        self._total = len(todo)
        self._over = threading.Event()

    def run(self, kills: Sequence[Sequence[str]] = (), stallers: int = 0) -> None:
        """Place all orders; meanwhile kill parties, one after the other, and then let some clients stall."""
        with ThreadPoolExecutor(CLIENTS + 2) as pool:
            watch = pool.submit(self._watch)
            running = [pool.submit(self._client) for _ in range(CLIENTS)]
            running.append(pool.submit(self._trouble, kills, stallers))
            try:
                for each in running:
                    each.result()
            finally:
                self._todo.clear()
                self._over.set()
            watch.result()

    def _client(self) -> None:
        with httpx.Client(base_url=self._server.url, timeout=PATIENCE_S) as http:
            while self._todo:
                with suppress(IndexError):  # another took the last one
                    self._place(self._todo.popleft(), http)

    def _place(self, placed: Order, http: httpx.Client) -> None:
        """Ask until there is an answer, and wait in between as long as the server says."""
        for _ in range(TRIES):
            attempt = self._attempt(placed, lambda: reply_to(http, placed))
            if placed.is_settled_by(attempt.reply):
                return
            time.sleep(float(attempt.reply.retry_after or 1))
        raise AssertionError(f"{placed} was never answered")

    def _attempt(self, placed: Order, ask_for_it: Callable[[], Reply]) -> Attempt:
        started = time.monotonic()
        reply = ask_for_it()
        attempt = Attempt(order=placed, reply=reply, started=started, ended=time.monotonic())
        self.attempts.append(attempt)
        return attempt

    def _trouble(self, kills: Sequence[Sequence[str]], stallers: int) -> None:
        for number, titles in enumerate(kills, 1):
            while self._total - len(self._todo) < self._total * number // (len(kills) + 2):
                time.sleep(0.005)
            started = time.monotonic()
            self._server.kill_and_wait(*titles)
            self.away.append((started, time.monotonic()))
        before = self._stalled()
        with ThreadPoolExecutor(max(stallers, 1)) as pool:
            for each in [pool.submit(self._stall, before + stallers) for _ in range(stallers)]:
                each.result()

    def _stall(self, cut: float) -> None:
        """Read the first piece of an endless answer, nothing until so many have been cut off, and then the rest."""
        placed = Order(kind="stalling", way="generated events", params={**ENDLESS, "code": 999, "seed": 1})

        def enough() -> bool:
            return self._server.metric("mstar_http_responses_cut_total", code="stalled") >= cut

        self._attempt(placed, lambda: ask_and_stall(self._server.url, placed, enough))

    def _stalled(self) -> float:
        return self._server.metric("mstar_http_responses_cut_total", code="stalled")

    def _watch(self) -> None:
        placed = Order(kind="health")
        with httpx.Client(base_url=self._server.url, timeout=PATIENCE_S) as http:
            while not self._over.wait(0.02):
                started = time.monotonic()
                answer = http.get("/health")
                reply = Reply(status=answer.status_code, error={"code": answer.json()["status"]})
                self.health.append(Attempt(order=placed, reply=reply, started=started, ended=time.monotonic()))


def reply_to(http: httpx.Client, placed: Order) -> Reply:
    match placed.kind:
        case "gone at once":
            return ask(http, placed, timeout=httpx.Timeout(PATIENCE_S, read=0.1))
        case "gone after a piece":
            return ask(http, placed, its_first_piece)
        case "slow":
            return ask(http, placed, slowly)
    return ask(http, placed)


def expected(params: dict, pcm: Callable) -> dict[str, bytes]:
    """The whole content of an answer, or more of an endless one than anybody waits for."""
    audio = pcm(min(params["items"], 1000), code=params["code"], seed=params["seed"])
    return {"audio": audio, "tensor": np.arange(1, params.get("rounds", 0) + 1, dtype="<i8").tobytes()}


def outcome(attempt: Attempt, pcm: Callable, away: Times) -> str:
    """What became of an attempt, in a word; raises when it is none of what may become of it."""
    placed, reply = attempt.order, attempt.reply
    if placed.kind == "bad":
        assert (reply.status, reply.error["code"], reply.error["param"]) == (400, "invalid_request", BAD[placed.bad][2])
        return "refused"
    whole = expected(placed.params, pcm)
    if reply.complete:
        assert placed.kind in TO_BE_COMPLETE
        assert reply.content == whole
        return "right"
    assert all(whole[modality].startswith(data[: len(whole[modality])]) for modality, data in reply.content.items())
    match reply.error.get("code"):
        case "node_failed":
            assert placed.kind == "failing"
            assert reply.status in (200, 500)
            assert f"node '{placed.params['fail']}' failed in walk" in reply.error["message"]
            return "failed"
        case "unavailable":
            assert reply.status == 200 or (reply.status, bool(reply.retry_after)) == (503, True)
            assert attempt.overlaps(away)
            return "unavailable"
    assert not reply.error
    if placed.kind == "gone at once":
        assert reply.status == 0
        return "gone"
    assert reply.status == 200
    if placed.kind in ("gone after a piece", "stalling"):
        return "gone"
    assert placed.way == "chunked", "only a chunked body may break off"
    if placed.kind == "failing":
        return "failed"
    assert attempt.overlaps(away)
    return "cut"


def outcomes(storm: Storm, pcm: Callable) -> Counter:
    """How many attempts of each kind became what; raises for the first that may not be."""
    became: Counter = Counter()
    for attempt in storm.attempts:
        try:
            became[attempt.order.kind, outcome(attempt, pcm, storm.away)] += 1
        except AssertionError as error:
            raise AssertionError(
                f"{attempt.order} from {attempt.started} to {attempt.ended}: {attempt.reply}; away: {storm.away}"
            ) from error
    return became


def assert_every_order_was_met(became: Counter, counts: dict[str, int]) -> None:
    """In the end every client got what it had asked for, and some had to ask again."""
    met: Counter = Counter()
    for (kind, what), count in became.items():
        met[kind] += count * (what not in ("unavailable", "cut"))
    assert met == counts
    assert became["plain", "unavailable"]


def assert_health(storm: Storm) -> None:
    """It was answered all the time: red while a party was away, and green otherwise."""
    red = [each for each in storm.health if each.reply.status != 200]
    assert {(each.reply.status, each.reply.error["code"]) for each in red} <= {(503, "unavailable"), (503, "loading")}
    assert all(each.overlaps(storm.away) for each in red)
    assert all(any(each.overlaps([times]) for each in red) for times in storm.away)


MIX = {"plain": 644, "counting": 6, "gone at once": 120, "gone after a piece": 80, "bad": 70, "failing": 70, "slow": 10}
SMALL_MIX = {"plain": 150, "counting": 2, "gone at once": 20, "gone after a piece": 20, "failing": 20, "slow": 4}
WARM_UP = {"plain": 40, "counting": 1, "gone at once": 2, "gone after a piece": 2, "bad": 4, "failing": 4}


def warm_up(server, eventually: Callable) -> dict:
    """What the processes hold when every one of them has talked to all that it ever talks to, and nothing runs."""
    Storm(server, orders(random.Random(1), WARM_UP)).run()
    assert eventually(lambda: not server.unrest()), server.unrest()
    return server.footprints()


@pytest.fixture
def settled(serve, eventually):
    """A server that has lost and replaced a worker already. Whatever happens to it, it holds no more afterwards."""
    with serve() as server:
        warm_up(server, eventually)
        server.kill_and_wait("worker writing")
        before = warm_up(server, eventually)
        yield server
        warm_up(server, eventually)
        assert eventually(lambda: not server.growth(before)), server.growth(before)


@pytest.mark.timeout(240)
def test_a_thousand_requests_get_what_is_theirs_while_workers_are_killed(settled, pcm):
    storm = Storm(settled, orders(random.Random(20), MIX))
    storm.run([["worker reading"], ["worker speaking"]], stallers=2)
    assert_every_order_was_met(outcomes(storm, pcm), {**MIX, "stalling": 2})
    assert_health(storm)


@pytest.mark.timeout(240)
def test_requests_in_flight_end_and_later_ones_are_served_when_the_conductor_is_killed(settled, pcm):
    """Once alone, and once together with a worker."""
    storm = Storm(settled, orders(random.Random(21), SMALL_MIX))
    storm.run([["conductor"], ["conductor", "worker speaking"]])
    assert_every_order_was_met(outcomes(storm, pcm), SMALL_MIX)
    assert_health(storm)
