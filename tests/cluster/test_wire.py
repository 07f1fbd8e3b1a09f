"""What goes over the wire comes out as it was."""

from typing import Any

import pytest
import torch
from torch import Tensor

from harness.cluster import wire
from harness.cluster.protocol import Exchange, Failure, Initialise, Push, Restored, WriteBack
from harness.core.errors import RankFailed


def make_push(num_rows: int, dim: int, first: float = float("nan")) -> Push:
    """Values that differ in every place, bits that no arithmetic keeps among them."""
    grads_ND = torch.arange(num_rows * dim, dtype=torch.float32).reshape(num_rows, dim) * -0.3
    grads_ND[:1] = first
    return Push(
        step=2**40,
        rows_N=torch.arange(num_rows) * 2**33,
        grads_ND=grads_ND,
        counts_N=torch.arange(num_rows, dtype=torch.int32) + 2**30,
        sampled_N=torch.arange(num_rows) % 3 == 0,
        learning_rate=0.1,
    )


def bits(value: Any) -> Any:
    """Fields of messages in messages, tensors as their type, shape and bytes."""
    if isinstance(value, Tensor):
        return value.dtype, value.shape, value.numpy().tobytes()
    return {name: bits(each) for name, each in vars(value).items()} if isinstance(value, Exchange | Push) else value


def test_an_exchange_comes_out_as_it_went_in() -> None:
    """Law: also with nothing in it, and with numbers of rows that fill no word; its memory is its own."""
    pushes = [None, *(make_push(*shape) for shape in [(0, 16), (1, 1), (7, 3), (579, 16)])]
    for push in pushes:
        for lookups in (None, 0, 1, 580):
            pull_N = None if lookups is None else torch.arange(2 * lookups)[lookups:] * 2**33
            for replica in (None, make_push(3, 5, first=1.0)):
                sent = Exchange(push=push, pull_N=pull_N, replica=replica)
                assert wire.is_plain(sent)
                words_W = wire.words_of(sent)
                assert words_W.untyped_storage().nbytes() == words_W.nbytes
                assert bits(wire.exchange_of(words_W)) == bits(sent)


def test_a_reply_comes_out_as_it_went_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Law: no rows are not nothing; what a rank raised, and a bug before its code sees a message, are no death."""
    for rows in (3, 0):
        came = wire.reply_of(wire.reply_tensor(torch.ones(rows, 16)))
        assert came.shape == (rows, 16)
    assert wire.reply_of(wire.reply_tensor(None)) is None
    came = wire.reply_of(wire.reply_tensor(Failure(RankFailed("ps1 failed at Exchange"))))
    assert isinstance(came, Failure)
    assert str(came.error) == "ps1 failed at Exchange"

    def fail(words_W: Tensor) -> Exchange:
        raise ValueError("cannot read this")

    monkeypatch.setattr(wire, "exchange_of", fail)
    came = wire.reply_of(wire.serve_words(wire.words_of(Exchange()), 0))
    assert isinstance(came, Failure)
    assert "cannot read this" in str(came.error)


def test_what_is_not_of_every_step_is_pickled_with_a_rank_s_own_rows() -> None:
    """Law: of a slice of all ranks' rows the others do not travel; what is whole is left as it is."""
    all_ND = torch.arange(20.0).reshape(10, 2)
    rows_N, ones_N = torch.arange(6), torch.ones(6, dtype=torch.int32)
    back = WriteBack(step=1, rows_N=rows_N, values_ND=all_ND[:6], counts_N=ones_N)
    assert not any(map(wire.is_plain, (Initialise(step=0), Exchange(push=back))))
    sent = wire.without_slices(Exchange(push=back, pull_N=rows_N))
    assert isinstance(sent.push, WriteBack)
    assert sent.push.values_ND.equal(all_ND[:6])
    assert sent.push.values_ND.untyped_storage().nbytes() == sent.push.values_ND.nbytes
    assert sent.pull_N is rows_N
    assert wire.without_slices(sent) is sent
    restored = Restored(num_rows=2)
    assert wire.reply_of(restored) is restored
