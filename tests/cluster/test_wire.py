"""What goes over the wire comes out as it was."""

import pytest
import torch
from torch import Tensor

from harness.cluster import wire
from harness.cluster.protocol import Exchange, Failure, Initialise, Push, Restored, WriteBack
from harness.core.errors import RankFailed


def make_push(num_rows: int, dim: int) -> Push:
    """Values that differ in every place, bits that no arithmetic keeps among them."""
    grads_ND = torch.arange(num_rows * dim, dtype=torch.float32).reshape(num_rows, dim) * -0.3
    grads_ND[:1] = torch.tensor([float("nan")])
    return Push(
        step=2**40,
        rows_N=torch.arange(num_rows) * 2**33,
        grads_ND=grads_ND,
        counts_N=torch.arange(num_rows, dtype=torch.int32) + 2**30,
        sampled_N=torch.arange(num_rows) % 3 == 0,
        learning_rate=0.1,
    )


def bits(message: Push | Exchange) -> dict[str, object]:
    """Fields, tensors as their type, shape and bytes."""
    return {
        name: (value.dtype, value.shape, value.numpy().tobytes()) if isinstance(value, Tensor) else value
        for name, value in vars(message).items()
        if name != "push"
    }


@pytest.mark.parametrize("lookups", [None, 0, 1, 580], ids=lambda number: f"{number} lookups")
@pytest.mark.parametrize("rows", [None, (0, 16), (1, 1), (7, 3), (579, 16)], ids=lambda shape: f"rows {shape}")
def test_an_exchange_comes_out_as_it_went_in(rows: tuple[int, int] | None, lookups: int | None) -> None:
    """Also with nothing in it, and with numbers of rows that fill no word; none of its rows shares others' memory."""
    push = None if rows is None else make_push(*rows)
    pull_N = None if lookups is None else torch.arange(2 * lookups)[lookups:] * 2**33
    sent = Exchange(push=push, pull_N=pull_N)
    assert wire.is_plain(sent)
    words_W = wire.words_of(sent)
    assert words_W.untyped_storage().nbytes() == words_W.nbytes
    came = wire.exchange_of(words_W)
    assert bits(came) == bits(sent)
    assert (came.push is None) == (push is None)
    if push is not None:
        assert isinstance(came.push, Push)
        assert bits(came.push) == bits(push)


@pytest.mark.parametrize("reply", [torch.ones(3, 16), torch.ones(0, 16), None], ids=["rows", "no rows", "nothing"])
def test_a_reply_comes_out_as_it_went_in(reply: Tensor | None) -> None:
    """No rows are not the same as nothing."""
    came = wire.reply_of(wire.reply_tensor(reply))
    assert (came is None) == (reply is None)
    if reply is not None:
        assert came.shape == reply.shape


def test_what_a_rank_raised_travels_as_a_value() -> None:
    """Its words too: nobody takes it for a death."""
    came = wire.reply_of(wire.reply_tensor(Failure(RankFailed("ps1 failed at Exchange"))))
    assert isinstance(came, Failure)
    assert str(came.error) == "ps1 failed at Exchange"


def test_a_bug_at_the_rank_is_no_death(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever goes wrong with a message there, before a rank's code sees it or after, comes back as a value."""

    def fail(words_W: Tensor) -> Exchange:
        raise ValueError("cannot read this")

    monkeypatch.setattr(wire, "exchange_of", fail)
    came = wire.reply_of(wire.serve_words(wire.words_of(Exchange())))
    assert isinstance(came, Failure)
    assert "cannot read this" in str(came.error)


def test_what_is_not_of_every_step_is_pickled() -> None:
    """Write-backs and rare requests; their replies are let through."""
    rows_N = torch.arange(2)
    back = WriteBack(step=1, rows_N=rows_N, values_ND=torch.ones(2, 4), counts_N=rows_N.int())
    others = Initialise(step=0), Exchange(push=back)
    assert not any(wire.is_plain(request) for request in others)
    restored = Restored(num_rows=2)
    assert wire.reply_of(restored) is restored
