import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from common.wire import LLAMA_PAGES, LlamaLimits, Statement
from frontend.engines import Engines
from frontend.metrics import Metrics
from frontend.prices import Prices
from frontend.runs import TextJob

LIMITS = LlamaLimits(1000, 100, page_tokens=10, page_bytes=1000, pages=50, tokenizer_dir="")
JOB = cast(TextJob, SimpleNamespace(prompt_ids=(1,) * 12, max_tokens=8, n=1))


def prices() -> Prices:
    return Prices(cast(Engines, SimpleNamespace(llama_limits=lambda: LIMITS)), Metrics())


def statement(held_bytes: int, quoted_bytes: int) -> Statement:
    told: dict[str, Any] = {"lease": "l", "model": "llama", "process_peak_bytes": 0}
    return Statement(held_bytes=held_bytes, quoted_bytes=quoted_bytes, **told)


def test_a_price_is_the_law_alone_while_it_holds() -> None:
    book = prices()
    price = book.text(JOB)
    book.settled(price, statement(2000, 2000))
    assert book.text(JOB) == price
    assert price.by_account() == {LLAMA_PAGES: 2000}


def test_an_excess_widens_the_next_price_and_says_why(caplog: pytest.LogCaptureFixture) -> None:
    book = prices()
    with caplog.at_level(logging.WARNING):
        book.settled(book.text(JOB), statement(3000, 2000))
    widened = book.text(JOB)
    assert widened.by_account() == {LLAMA_PAGES: 3000}
    assert "drift: work used up to 1.500 times its price" in widened.explain()
    assert "held 3000 B, its price was 2000 B" in caplog.text


def test_work_is_judged_by_the_law_and_not_by_the_widened_price() -> None:
    book = prices()
    book.settled(book.text(JOB), statement(3000, 2000))
    book.settled(book.text(JOB), statement(2500, 3000))
    assert book.drift("llama").excesses == 2
    for _ in range(2000):
        book.settled(book.text(JOB), statement(2000, book.text(JOB).total_bytes))
    assert book.text(JOB).total_bytes == 2000


def test_the_widening_is_a_metric() -> None:
    metrics = Metrics()
    book = Prices(cast(Engines, SimpleNamespace(llama_limits=lambda: LIMITS)), metrics)
    book.settled(book.text(JOB), statement(3000, 2000))
    assert 'vramgate_price_widened_ratio{model="llama"} 1.5' in metrics.render().decode()
