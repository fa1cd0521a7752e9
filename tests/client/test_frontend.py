"""The frontend on its own thread, with the test as its Conductor and its workers (see `conftest.py`)."""

import asyncio
import math
import threading

import numpy as np
import pytest

from mstar_core.errors import Conflict, InvalidRequest, NodeFailed, RequestError, Unavailable
from mstar_core.spec.content import Progress
from mstar_core.wire.address import Keys
from mstar_core.wire.mailbox import Mailbox
from mstar_core.wire.messages import (
    EMIT_WINDOW,
    AskMetrics,
    Cancel,
    Emitted,
    Ended,
    ErrorInfo,
    Fetch,
    Fetched,
    Metrics,
    Output,
    PeerLost,
    Read,
    Released,
    Sample,
    ServerState,
    TensorRef,
)

PATIENCE_S = 20.0
READY = ServerState(True, {"model": "ready"}, {})


def test_a_request_goes_to_the_conductor_with_its_inputs_held(stage):
    _, submit = stage.submit("r1", timeout=2.5, prompt=[1, 2, 3])
    assert (submit.request, submit.model, submit.params, submit.seed) == ("r1", "model", {"heat": 1.0}, 7)
    assert (submit.outputs, submit.frontend, submit.timeout) == (["audio", "text"], stage.address, 2.5)
    (ref,) = submit.inputs["prompt"]
    for party in (stage.worker, stage.other):
        assert party.exchange.take(ref).tolist() == [1, 2, 3]


def test_outputs_come_in_order_and_then_the_end(stage):
    ticket, submit = stage.submit()
    stage.emit(submit.ticket, 1, 2)
    stage.emit(submit.ticket, 3)
    stage.end(submit.ticket, emitted=3, reason="length")
    assert list(ticket) == [("text", [1]), ("text", [2]), ("text", [3])]
    assert (ticket.end.reason, ticket.end.usage) == ("length", {"walk": 3})
    assert stage.frontend.open_requests == 0


def test_an_end_waits_for_outputs_that_are_still_on_their_way(stage):
    ticket, submit = stage.submit()
    stage.end(submit.ticket, emitted=2)
    stage.settle()
    assert stage.frontend.open_requests == 1
    stage.emit(submit.ticket, 1)
    stage.emit(submit.ticket, 2, worker=stage.other)
    assert len(list(ticket)) == 2


def test_a_failure_does_not_wait_for_outputs(stage):
    ticket, submit = stage.submit()
    stage.end(submit.ticket, emitted=5, error=ErrorInfo("node_failed", "boom"))
    with pytest.raises(NodeFailed, match="boom"):
        list(ticket)


def test_inputs_are_kept_until_no_worker_reads_them(stage):
    ticket, submit = stage.submit(prompt=[1])
    stage.conductor.tell(stage.address, Ended(submit.ticket, "stop", 0, {}))
    assert list(ticket) == []
    (ref,) = submit.inputs["prompt"]
    assert stage.worker.exchange.take(ref).tolist() == [1]
    stage.conductor.tell(stage.address, Released(submit.ticket))
    stage.settle()
    assert len(stage.store) == 0
    with pytest.raises(KeyError):
        stage.worker.exchange.take(ref)


def test_what_comes_for_a_ticket_that_is_gone_is_freed(stage):
    ticket, submit = stage.submit()
    stage.end(submit.ticket, error=ErrorInfo("cancelled", "the request was cancelled"))
    stage.settle()
    stage.emit(submit.ticket, 1, 2)
    stage.emit(12345, 3)
    stage.settle()
    assert len(stage.store) == 0
    with pytest.raises(RequestError):
        list(ticket)


def test_a_worker_hears_how_many_of_its_outputs_were_read(stage):
    quarter = EMIT_WINDOW // 4
    ticket, submit = stage.submit()
    stage.emit(submit.ticket, *range(quarter))
    stage.emit(submit.ticket, *range(quarter - 1), worker=stage.other)
    stage.settle()
    assert stage.worker.silent()
    contents = iter(ticket)
    for _ in range(2 * quarter - 1):
        next(contents)
    assert stage.worker.heard() == Read(stage.address, submit.ticket, quarter)
    stage.settle()
    assert stage.other.silent()
    stage.emit(submit.ticket, 0, worker=stage.other)
    next(contents)
    assert stage.other.heard() == Read(stage.address, submit.ticket, quarter)


def test_nothing_is_reported_of_a_request_that_has_ended(stage):
    ticket, submit = stage.submit()
    stage.emit(submit.ticket, *range(EMIT_WINDOW))
    stage.end(submit.ticket, emitted=EMIT_WINDOW)
    stage.settle()
    assert len(list(ticket)) == EMIT_WINDOW
    stage.settle()
    assert stage.worker.silent()


def test_a_ticket_can_be_read_in_an_event_loop(stage):
    ticket, submit = stage.submit()

    async def read():
        return [content async for content in ticket]

    stage.emit(submit.ticket, 1)
    threading.Timer(0.05, lambda: (stage.emit(submit.ticket, 2), stage.end(submit.ticket, emitted=2))).start()
    assert asyncio.run(read()) == [("text", [1]), ("text", [2])]


def test_a_lost_output_fails_its_request_and_is_cancelled(stage):
    ticket, submit = stage.submit()
    lost = TensorRef("int64", (1,), None, "local", stage.store.place, 999)
    stage.worker.tell(stage.address, Emitted(stage.worker.address, [Output(submit.ticket, "text", lost)]))
    with pytest.raises(Unavailable, match="lost"):
        list(ticket)
    assert stage.conductor.heard() == Cancel("r1", stage.address, submit.ticket)


def test_a_cancellation_names_the_ticket_and_comes_once_it_was_submitted(stage):
    ticket = stage.send()
    ticket.cancel()
    submit = stage.conductor.heard()
    assert stage.conductor.heard() == Cancel("r1", stage.address, submit.ticket)
    stage.end(submit.ticket)
    list(ticket)
    ticket.cancel()
    stage.settle()
    assert stage.conductor.silent()


def test_progress_passes_by_the_renderer_and_is_no_first_output(stage):
    ticket, submit = stage.submit()
    stage.emit(submit.ticket, [1, 4], modality="progress")
    stage.settle()
    assert "mstar_request_first_output_seconds" not in {sample.name for sample in stage.frontend.samples()}
    stage.emit(submit.ticket, 7)
    stage.end(submit.ticket, emitted=2)
    assert list(ticket) == [Progress(1, 4), ("text", [7])]
    assert "mstar_request_first_output_seconds" in {sample.name for sample in stage.frontend.samples()}


def test_a_ticket_that_is_stopped_tells_the_counts_of_what_was_done(stage):
    ticket, submit = stage.submit()
    stage.emit(submit.ticket, 1, 2, 3)

    async def stopped():
        async for _ in ticket:
            break
        stop = asyncio.create_task(ticket.stop())
        assert await asyncio.to_thread(stage.conductor.heard) == Cancel("r1", stage.address, submit.ticket)
        stage.end(submit.ticket, error=ErrorInfo("cancelled", "the request was cancelled"))
        return await stop

    assert asyncio.run(stopped()) == {"walk": 3}


def test_an_id_is_taken_until_the_request_has_ended(stage):
    ticket, submit = stage.submit("r1")
    with pytest.raises(Conflict, match="'r1'"):
        stage.send("r1")
    stage.end(submit.ticket)
    list(ticket)
    _, again = stage.submit("r1")
    assert again.ticket != submit.ticket


@pytest.mark.parametrize("timeout", [0, -1, math.inf, math.nan])
def test_a_timeout_that_cannot_be_is_refused(stage, timeout):
    with pytest.raises(InvalidRequest) as raised:
        stage.send(timeout=timeout)
    assert raised.value.param == "timeout"
    assert stage.frontend.open_requests == 0


def test_an_input_that_is_no_tensor_is_refused(stage):
    with pytest.raises(RequestError, match="the processor of 'model' gave an input 'prompt'"):
        stage.send(prompt=np.array(["text", None]))
    assert stage.frontend.open_requests == 0


def test_submitting_does_not_wait_for_a_conductor_that_takes_nothing(stage):
    tickets = [stage.send(f"r{number}", prompt=[number]) for number in range(3000)]
    for ticket in tickets:
        ticket.cancel()
    stage.frontend.fail_all(Unavailable("the Conductor has ended"))
    for ticket in tickets:
        with pytest.raises(Unavailable):
            list(ticket)


def test_without_a_conductor_everything_fails_until_there_is_another(stage):
    running = [stage.submit(f"r{number}", prompt=[number])[0] for number in range(3)]
    stage.frontend.fail_all(Unavailable("the Conductor has ended", retry_after=1.0))
    for ticket in running:
        with pytest.raises(Unavailable, match="the Conductor has ended"):
            list(ticket)
    with pytest.raises(Unavailable) as refused:
        stage.send("r9")
    assert refused.value.retry_after == 1.0
    stage.settle()
    assert len(stage.store) == 0
    stage.conductor.tell(stage.address, READY)
    stage.settle()
    ticket, submit = stage.submit("r1", prompt=[4])
    assert stage.worker.exchange.take(submit.inputs["prompt"][0]).tolist() == [4]
    stage.end(submit.ticket)
    assert list(ticket) == []


def test_what_waits_for_a_lost_conductor_is_dropped(stage):
    for number in range(5000):
        stage.send(f"r{number}")
    stage.settle()
    assert stage.mailbox.waiting > 0
    stage.frontend.fail_all(Unavailable("gone"))
    stage.settle()
    assert stage.mailbox.waiting == 0


def test_a_request_that_failed_before_it_was_sent_is_not_sent(stage):
    with stage.busy():
        ticket = stage.send("r1", prompt=[1])
        stage.frontend.fail_all(Unavailable("gone"))
    stage.settle()
    with pytest.raises(Unavailable):
        list(ticket)
    assert stage.conductor.silent()
    assert len(stage.store) == 0


def test_a_conductor_that_can_serve_one_of_two_models_is_asked_again(stage):
    stage.frontend.fail_all(Unavailable("gone"))
    stage.conductor.tell(stage.address, ServerState(False, {"model": "loading"}, {}))
    stage.settle()
    with pytest.raises(Unavailable):
        stage.send()
    stage.conductor.tell(stage.address, ServerState(False, {"model": "ready", "next": "loading"}, {}))
    stage.settle()
    stage.submit()


def test_the_late_words_of_a_lost_conductor_change_nothing(stage):
    ticket, submit = stage.submit(prompt=[1])
    stage.frontend.fail_all(Unavailable("gone"))
    stage.end(submit.ticket)
    stage.settle()
    with pytest.raises(Unavailable):
        list(ticket)
    assert stage.frontend.open_requests == 0


def test_what_the_conductor_says_of_the_server_is_passed_on(stage):
    stage.conductor.tell(stage.address, READY)
    stage.settle()
    assert READY in stage.states


def test_closing_ends_open_requests_as_unavailable_and_refuses_new_ones(make_stage):
    stage = make_stage()
    ticket, _ = stage.submit(prompt=[1])
    stage.frontend.close()
    with pytest.raises(Unavailable, match="the server has stopped"):
        list(ticket)
    with pytest.raises(Unavailable, match="the server has stopped"):
        stage.send("r2")
    ticket.cancel()


def test_a_worker_of_another_host_gets_the_inputs_in_a_message(context, make_stage, tmp_path):
    keys = Keys.generate()
    stage = make_stage(keys=keys)
    far = Mailbox(context, f"ipc://{tmp_path}/far", far="tcp://127.0.0.1:0", keys=keys, host="elsewhere")
    with far:
        _, submit = stage.submit(prompt=[1, 2])
        stage.worker.tell(stage.address, Fetch(5, submit.inputs, far.address))
        (answer,) = far.receive(PATIENCE_S)
        assert isinstance(answer, Fetched)
        assert answer.key == 5
        assert stage.worker.exchange.take(answer.inputs["prompt"][0]).tolist() == [1, 2]
        stage.end(submit.ticket)
        stage.settle()
        stage.worker.tell(stage.address, Fetch(6, submit.inputs, far.address))
        stage.settle()
        assert far.receive(0.2) == []


def test_what_waits_for_a_lost_worker_is_dropped(stage):
    for party in (stage.conductor, stage.other):
        party.tell(stage.address, *(Fetch(number, {}, stage.worker.address) for number in range(1500)))
    stage.settle()
    assert stage.mailbox.waiting > 0
    stage.conductor.tell(stage.address, PeerLost(stage.worker.address))
    stage.settle()
    assert stage.mailbox.waiting == 0


def asked(stage, addresses, timeout=PATIENCE_S):
    """Asks parties in a thread of its own; the list will hold the answers."""
    answers = []
    thread = threading.Thread(target=lambda: answers.append(stage.frontend.ask_metrics(addresses, timeout)))
    thread.start()
    return thread, answers


def sample(value):
    return Sample("mstar_things", "gauge", "Things.", {}, value)


def test_parties_are_asked_at_once_and_those_that_answer_in_time_are_heard(stage):
    addresses = {"conductor": stage.conductor.address, "w": stage.worker.address, "mute": stage.other.address}
    thread, answers = asked(stage, addresses, timeout=0.5)
    for party, value in ((stage.conductor, 1), (stage.worker, 2)):
        question = party.heard()
        assert question == AskMetrics(question.number, stage.address)
        party.tell(stage.address, Metrics(question.number, "whoever", [sample(value)]))
    thread.join()
    assert answers == [{"conductor": [sample(1)], "w": [sample(2)]}]


def test_who_has_not_answered_is_not_asked_again_and_its_answer_serves_all_who_wait(stage):
    addresses = {"w": stage.worker.address}
    assert stage.frontend.ask_metrics(addresses, 0.05) == {}
    waiting = [asked(stage, addresses) for _ in range(3)]
    stage.settle()
    question = stage.worker.heard()
    assert stage.worker.silent()
    stage.worker.tell(stage.address, Metrics(question.number, "w", [sample(3)]))
    stage.worker.tell(stage.address, Metrics(question.number, "w", [sample(4)]))
    for thread, answers in waiting:
        thread.join()
        assert answers == [{"w": [sample(3)]}]


def test_a_new_conductor_is_asked_although_the_last_one_did_not_answer(stage):
    addresses = {"conductor": stage.conductor.address}
    assert stage.frontend.ask_metrics(addresses, 0.05) == {}
    first = stage.conductor.heard()
    stage.frontend.fail_all(Unavailable("gone"))
    thread, answers = asked(stage, addresses)
    second = stage.conductor.heard()
    assert second.number != first.number
    stage.conductor.tell(stage.address, Metrics(second.number, "conductor", [sample(5)]))
    thread.join()
    assert answers == [{"conductor": [sample(5)]}]


def test_a_closed_frontend_answers_questions_at_once(make_stage):
    stage = make_stage()
    ticket, _ = stage.submit()
    stage.frontend.close()
    with pytest.raises(Unavailable):
        list(ticket)
    assert stage.frontend.ask_metrics({"w": stage.worker.address}, PATIENCE_S) == {}


def test_a_request_whose_outputs_were_lost_with_their_worker_ends(stage):
    """The Conductor has said that it is complete, and will say nothing more of it."""
    ticket, submitted = stage.submit()
    stage.end(submitted.ticket, emitted=1)
    stage.conductor.tell(stage.address, PeerLost(stage.worker.address))
    with pytest.raises(Unavailable, match="lost"):
        list(ticket)
