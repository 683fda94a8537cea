"""Rows of concurrent requests share batches; nothing is lost, and what nobody waits for is not translated."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import CancelledError

import pytest

from fake_translator import SECONDS, FakeTranslator
from hf_multisource.serving.batching import LONGEST_DELAY, Batcher, Job, Options, OverloadedError


def row(text: str) -> dict[str, str | None]:
    return {"en": text}


def texts(job: Job) -> list[str]:
    return [translation.candidates[0].text for translation in job.future.result(SECONDS)]


@pytest.fixture
def fake() -> FakeTranslator:
    return FakeTranslator()


@pytest.fixture
def batcher(fake: FakeTranslator) -> Iterator[Batcher]:
    batcher = Batcher(fake, max_batch=4, max_wait=0.0, max_queue=6)
    batcher.start()
    yield batcher
    fake.free.set()
    batcher.close(SECONDS)
    assert not batcher.is_alive


def occupy(batcher: Batcher, fake: FakeTranslator) -> Job:
    """Let the worker begin a batch of one row and wait in it."""
    fake.hold()
    first = batcher.submit([row("first")], Options())
    fake.wait_until_busy()
    return first


def test_rows_that_wait_share_batches_in_their_order(batcher: Batcher, fake: FakeTranslator) -> None:
    first = occupy(batcher, fake)
    jobs = [batcher.submit([row(f"{k}a"), row(f"{k}b")], Options()) for k in range(3)]
    fake.free.set()
    assert texts(first) == ["FIRST"]
    assert [texts(job) for job in jobs] == [["0A", "0B"], ["1A", "1B"], ["2A", "2B"]]
    assert [[one["en"] for one in batch] for batch in fake.batches] == [
        ["first"],
        ["0a", "0b", "1a", "1b"],
        ["2a", "2b"],
    ]


def test_rows_of_different_options_do_not_share_a_batch_and_none_starves(
    batcher: Batcher, fake: FakeTranslator
) -> None:
    occupy(batcher, fake)
    narrow, wide = Options(n_best=1), Options(n_best=2, num_beams=6, max_new_tokens=9, syntax="html")
    jobs = [batcher.submit([row(f"{k}")], options) for k, options in enumerate([wide, narrow, wide, narrow, narrow])]
    fake.free.set()
    assert [texts(job) for job in jobs] == [["0"], ["1"], ["2"], ["3"], ["4"]]
    assert [[one["en"] for one in batch] for batch in fake.batches[1:]] == [["0", "2"], ["1", "3", "4"]]
    assert fake.options[1] == {"n_best": 2, "num_beams": 6, "max_new_tokens": 9, "syntax": "html"}


def test_a_batch_waits_a_moment_for_further_rows(fake: FakeTranslator) -> None:
    batcher = Batcher(fake, max_batch=2, max_wait=SECONDS)
    batcher.start()
    jobs = [batcher.submit([row("a")], Options()), batcher.submit([row("b")], Options())]
    assert [texts(job) for job in jobs] == [["A"], ["B"]]
    assert len(fake.batches) == 1
    batcher.close(SECONDS)


def test_a_full_queue_refuses_all_rows_of_a_request_or_none(batcher: Batcher, fake: FakeTranslator) -> None:
    occupy(batcher, fake)
    kept = batcher.submit([row("a")] * 4, Options())
    for seconds_per_row, delay in ((0.0, 1), (3.0, 12), (100.0, LONGEST_DELAY)):
        batcher._seconds_per_row = seconds_per_row
        with pytest.raises(
            OverloadedError, match=r"4 rows are waiting; with the 3 of this request .* more than 6"
        ) as error:
            batcher.submit([row("b")] * 3, Options())
        assert error.value.delay == delay
    assert batcher.waiting == 4
    assert not batcher.is_full
    also = batcher.submit([row("c")] * 2, Options())
    assert batcher.is_full
    fake.free.set()
    assert (texts(kept), texts(also)) == (["A"] * 4, ["C"] * 2)


def test_cancelled_rows_leave_the_queue_and_those_in_the_running_batch_are_dropped(
    batcher: Batcher, fake: FakeTranslator
) -> None:
    running = occupy(batcher, fake)
    gone, kept = batcher.submit([row("gone")] * 2, Options()), batcher.submit([row("kept")], Options())
    assert batcher.cancel(gone) == 2
    assert batcher.cancel(running) == 0
    assert batcher.waiting == 1
    fake.free.set()
    assert texts(kept) == ["KEPT"]
    assert [[one["en"] for one in batch] for batch in fake.batches] == [["first"], ["kept"]]
    with pytest.raises(CancelledError):
        running.future.result(SECONDS)


def test_a_row_that_fails_fails_its_own_request_only(
    batcher: Batcher, fake: FakeTranslator, caplog: pytest.LogCaptureFixture
) -> None:
    occupy(batcher, fake)
    good, bad = batcher.submit([row("a")], Options()), batcher.submit([row("b"), row("fail")], Options())
    other = batcher.submit([row("c")], Options())
    fake.free.set()
    assert (texts(good), texts(other)) == (["A"], ["C"])
    with pytest.raises(ValueError, match="cannot translate fail"):
        bad.future.result(SECONDS)
    assert "a batch of 4 rows failed" in caplog.text
    assert texts(batcher.submit([row("again")], Options())) == ["AGAIN"]


def test_closing_translates_what_waits_and_refuses_what_comes(fake: FakeTranslator) -> None:
    batcher = Batcher(fake, max_batch=2, max_wait=SECONDS)
    batcher.start()
    job = batcher.submit([row("a")], Options())
    batcher.close(SECONDS)
    assert texts(job) == ["A"]
    assert not batcher.is_alive
    with pytest.raises(OverloadedError, match="shutting down"):
        batcher.submit([row("b")], Options())


def test_a_translator_that_loses_rows_is_an_error(batcher: Batcher, fake: FakeTranslator) -> None:
    fake.translate = lambda rows, **options: []  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="0 translations for 1 rows"):
        batcher.submit([row("a")], Options()).future.result(SECONDS)
