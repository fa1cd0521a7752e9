"""What a worker sends at the end of a turn."""

import torch
import zmq

from mstar_core.wire.exchange import Exchange
from mstar_core.wire.mailbox import Mailbox
from mstar_core.wire.messages import Beat, StreamItems
from mstar_core.worker.post import Post


def test_what_a_turn_has_made_for_a_party_that_is_gone_is_not_sent():
    """Sending it would connect to that party again, for ever."""
    context: zmq.Context = zmq.Context()
    with (
        Mailbox(context, "inproc://worker") as own,
        Mailbox(context, "inproc://gone") as gone,
        Mailbox(context, "inproc://stays") as stays,
    ):
        post = Post(own, Exchange(own.address), stays.address)
        for peer in (gone, stays):
            post.stream(1, 0, peer.address)(torch.zeros(2))
        post.forget(gone.address)
        post.flush()
        own.send(gone.address, Beat("last"))
        assert [type(message) for message in stays.receive(5)] == [StreamItems]
        assert gone.receive(5) == [Beat("last")]
    context.term()
