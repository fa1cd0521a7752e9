import itertools
import json
from pathlib import Path

import pytest

from mstar_core.client.trace_file import TraceFile
from mstar_core.errors import ConfigurationError
from mstar_core.wire.messages import Span, Spans

STEP = 0.001


def span(start, *, worker="w0", node="writer", walk="write", requests=("r1", "r2"), failed=False, seconds=STEP):
    return Span(worker, "model", node, walk, start, seconds, list(requests), failed)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "trace.json"


@pytest.fixture
def trace(path):
    with TraceFile(path) as trace:
        yield trace


def read(path):
    """The events of a trace whose writer was killed: all but the closing bracket."""
    text = path.read_text().rstrip()
    return json.loads(text if text.endswith("\n]") else text + "]")


def named(events, kind):
    return {(event["pid"], event["tid"]): event["args"]["name"] for event in events if event["name"] == kind}


def test_a_batch_is_one_complete_event_in_microseconds_with_its_requests(trace, path):
    trace.write_spans([span(100.5), span(101.5, failed=True, requests=["r3"])])
    first, second = (event for event in read(path) if event["ph"] == "X")
    assert (first["name"], first["ts"], first["dur"]) == ("writer", 100_500_000, 1000)
    assert first["args"] == {"requests": ["r1", "r2"], "batch": 2, "failed": False}
    assert second["args"] == {"requests": ["r3"], "batch": 1, "failed": True}


def test_workers_are_processes_and_nodes_in_walks_are_threads_named_once(trace, path):
    trace.write_spans([span(1.0), span(2.0), span(3.0, walk="rewrite"), span(4.0, worker="w1")])
    trace.write_spans([span(5.0)])
    events = read(path)
    processes, threads = named(events, "process_name"), named(events, "thread_name")
    assert sorted(processes.values()) == ["requests", "w0", "w1"]
    assert sorted(threads.values()) == ["model/writer/rewrite", "model/writer/write", "model/writer/write"]
    shown = [(processes[event["pid"], 0], threads[event["pid"], event["tid"]]) for event in events if "dur" in event]
    assert shown == [
        ("w0", "model/writer/write"),
        ("w0", "model/writer/write"),
        ("w0", "model/writer/rewrite"),
        ("w1", "model/writer/write"),
        ("w0", "model/writer/write"),
    ]
    assert len(processes) + len(threads) == sum(event["ph"] == "M" for event in events)


def test_batches_that_follow_each_other_do_not_overlap_however_they_are_rounded(trace, path):
    start, spans = 1_700_000_000.0, []
    for number in range(500):
        seconds = 0.000_123_4 * (number % 7 + 1)
        spans.append(span(start, seconds=seconds))
        start += seconds
    trace.write_spans(spans)
    batches = [event for event in read(path) if event["ph"] == "X"]
    assert all(event["ts"] + event["dur"] <= after["ts"] for event, after in itertools.pairwise(batches))


def test_a_request_is_a_pair_of_asynchronous_events(trace, path):
    trace.begin_request(7, "model", "r1")
    trace.end_request(7, "model", "length")
    begun, ended = (event for event in read(path) if event["ph"] in "be")
    assert (begun["ph"], begun["args"]) == ("b", {"request": "r1"})
    assert (ended["ph"], ended["args"]) == ("e", {"reason": "length"})
    assert begun["ts"] <= ended["ts"]
    assert all(begun[key] == ended[key] for key in ("name", "cat", "id", "pid"))


def test_every_event_is_a_line_at_once_and_the_closed_file_is_json(path):
    with TraceFile(path) as trace:
        for number in range(3):
            trace.write_spans([span(float(number))])
            lines = path.read_text().splitlines()
            assert lines[0] == "["
            assert all(json.loads(line.rstrip(",")) for line in lines[1:])
            assert len(read(path)) == len(lines) - 1
    assert json.loads(path.read_text()) == read(path)


def test_a_trace_without_events_is_json_too(path):
    TraceFile(path).close()
    assert [event["ph"] for event in json.loads(path.read_text())] == ["M"]


def test_what_comes_after_the_end_is_ignored(path):
    trace = TraceFile(path)
    trace.close()
    before = path.read_bytes()
    trace.write_spans([span(1.0)])
    trace.close()
    assert path.read_bytes() == before


def test_a_file_that_cannot_be_written_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="No such file or directory"):
        TraceFile(tmp_path / "nowhere" / "trace.json")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_ends_the_trace_and_not_the_server(caplog):
    with TraceFile(Path("/dev/full")) as trace:
        trace.write_spans([span(1.0)])
        trace.end_request(1, "model", "stop")
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_the_frontend_traces_requests_and_what_workers_ran(make_stage, trace, path):
    stage = make_stage(trace=trace)
    ticket, submit = stage.submit("r1")
    stage.worker.tell(stage.address, Spans([span(1.0)]))
    stage.end(submit.ticket)
    assert list(ticket) == []
    stage.settle()
    events = read(path)
    assert [event["ph"] for event in events if event["ph"] != "M"] in (["b", "X", "e"], ["b", "e", "X"])
    assert [event["args"].get("request") for event in events if event["ph"] == "b"] == ["r1"]
