"""Two ranks in one process: threads that meet in every sum."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch

from mstar_core.engines.base import TensorParallel
from mstar_core.nn.llama import load_llama
from mstar_core.nn.llama_config import LlamaConfig

CPU = torch.device("cpu")


class Meeting:
    """An all-reduce between threads."""

    def __init__(self, ranks):
        self.barrier = Barrier(ranks, timeout=30)
        self.partial = [None] * ranks

    def of(self, rank):
        def reduce(mine):
            self.partial[rank] = mine
            self.barrier.wait()
            total = torch.stack(self.partial).sum(0)
            self.barrier.wait()
            return total

        return reduce


@torch.inference_mode()
def test_two_ranks_together_give_the_logits_of_one(write_llama, small, one_sequence):
    directory = write_llama(small)
    config = LlamaConfig.read(directory)
    ids = torch.arange(21) * 4
    meeting = Meeting(2)

    def rank(number, size=2):
        reduce = meeting.of(number) if size > 1 else None
        parallel = TensorParallel(rank=number, size=size)
        with torch.inference_mode():  # the mode is a thread's own
            model = load_llama(directory, config, device=CPU, dtype=torch.float32, parallel=parallel, reduce=reduce)
            return model.kv.kv_heads, model.logits(model(ids, one_sequence(len(ids))))

    with ThreadPoolExecutor(2) as pool:
        (heads, first), (_, second) = pool.map(rank, (0, 1))
    whole_heads, whole = rank(0, size=1)
    assert (heads, whole_heads) == (1, 2)
    torch.testing.assert_close(first, whole, atol=1e-5, rtol=1e-5)
    assert torch.equal(first, second)


def test_ranks_that_cannot_sum_are_refused(write_llama, small):
    directory = write_llama(small)
    with pytest.raises(ValueError, match="pass reduce"):
        load_llama(
            directory,
            LlamaConfig.read(directory),
            device=CPU,
            dtype=torch.float32,
            parallel=TensorParallel(rank=0, size=2),
        )
