"""A party in a process of its own, which tests start by this file: `child.py MAILBOX ROLE ARGUMENT`, both in JSON.

`burst`: send so many large messages to a peer before reading any, then expect as many. `serve`: do with every tensor
what its output's modality says, and answer.
"""

import json
import sys
from pathlib import Path

import zmq

from mstar_core.wire.address import Keys
from mstar_core.wire.exchange import Exchange
from mstar_core.wire.mailbox import Mailbox
from mstar_core.wire.messages import Address, Emitted, Output, Stop, WorkerFailed

LARGE = 10_000


def burst(mailbox, peer, count):
    peer = Address(*peer)
    for number in range(count):
        mailbox.send(peer, WorkerFailed(str(number), "x" * LARGE))
    got = []
    while len(got) < count or mailbox.waiting:
        got += [int(message.worker) for message in mailbox.receive(0.05)]
    assert got == list(range(count))
    mailbox.send(peer, Stop())


def serve(mailbox, shared_bytes):
    exchange, kept = Exchange(mailbox.address, shared_bytes=shared_bytes), []
    while True:
        for message in mailbox.receive(None):
            if isinstance(message, Stop):
                return
            outputs = [
                Output(output.ticket, str(len(kept)), tensor)
                for output in message.outputs
                for tensor in act(exchange, kept, output, message.worker)
            ]
            mailbox.send(message.worker, Emitted(mailbox.address, outputs))


def act(exchange, kept, output, sender):
    """Take and keep, let everything go, take and send back, or give back untaken."""
    match output.modality:
        case "keep":
            kept.append(exchange.take(output.tensor))
        case "let go":
            kept.clear()
        case "echo":
            yield exchange.publish(exchange.take(output.tensor), sender, output.tensor.dtype)
        case "release":
            exchange.release(output.tensor)


def main(mailbox, role, arguments):
    keys = Keys.load(Path(mailbox.pop("keys"))) if "keys" in mailbox else None
    with zmq.Context() as context, Mailbox(context, keys=keys, **mailbox) as box:
        print(json.dumps([box.address.host, box.address.near, box.address.far]), flush=True)
        {"burst": burst, "serve": serve}[role](box, *arguments)


if __name__ == "__main__":
    main(*map(json.loads, sys.argv[1:]))
