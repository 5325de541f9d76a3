import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from common.wire import ActiveLease, Statement
from estimator.price import Line, Price
from frontend.claim import Claim
from frontend.journal import Entry
from tests.unit.fake_bank import Bank, open_bank, status
from tests.unit.web import until

PRIVATE = "a word that must not be repeated"


def run(folder: Path, test: Callable[[Bank], Awaitable[None]]) -> None:
    async def opened() -> None:
        async with open_bank(folder) as bank:
            await test(bank)

    asyncio.run(opened())


def pages(size: int) -> Price:
    return Price((Line("llama.pages", size, "because"),))


@pytest.mark.parametrize(
    ("body", "tokens", "total_bytes"),
    [
        ({"prompt": "one two three", "max_tokens": 4}, (4, 4, 1), 200),
        ({"prompt_tokens": 5, "max_tokens": 4, "n": 2}, (5, 4, 2), 600),
        ({"prompt_tokens": 60}, (60, 4, 1), 1600),
        ({"messages": [{"role": "user", "content": "one two"}], "max_tokens": 5}, (3, 5, 1), 200),
    ],
)
def test_a_text_is_quoted_by_its_real_tokens(
    tmp_path: Path, body: dict[str, Any], tokens: tuple[int, int, int], total_bytes: int
) -> None:
    async def test(bank: Bank) -> None:
        answer = (await bank.quote(model="llama", **body)).json()
        assert (answer["prompt_tokens"], answer["max_tokens"], answer["n"]) == tokens
        assert answer["total_bytes"] == total_bytes
        (line,) = answer["lines"]
        assert (line["account"], line["bytes"]) == ("llama.pages", total_bytes)
        assert f"{tokens[0]} prompt + {tokens[1]} output tokens" in line["why"]
        assert answer["accounts"] == [
            {
                "account": "llama.pages",
                "price_bytes": total_bytes,
                "available_bytes": 1000,
                "capacity_bytes": 1000,
            }
        ]
        assert answer["verdict"] == ("admit" if total_bytes <= 1000 else "never")
        assert answer["drift"] == {"widened": 1.0, "excesses": 0, "worst": 0.0}
        assert answer["decided_by"] == "llama.pages"
        assert bank.services.ledger.leases() == (), "a quote holds nothing"

    run(tmp_path, test)


def test_a_quote_says_when_it_would_fit(tmp_path: Path) -> None:
    async def test(bank: Bank) -> None:
        bank.services.ledger.reserve("llama", pages(900), "boot", 5.0)
        body = {"model": "llama", "prompt_tokens": 5, "max_tokens": 4}
        answer = (await bank.quote(**body)).json()
        assert answer["verdict"] == "wait"
        assert 4 < answer["retry_after_s"] <= 5
        assert answer["accounts"][0]["available_bytes"] == 100
        bank.services.ledger.reserve("llama", pages(100), "boot", 60.0)
        assert (await bank.quote(**(body | {"max_tokens": 35}))).json()["verdict"] == "not_now"
        bank.services.admission.close("the breaker is open")
        assert (await bank.quote(**body)).json()["closed"] == "the breaker is open"

    run(tmp_path, test)


def test_a_quote_says_so_where_its_work_would_delay_who_waits(tmp_path: Path) -> None:
    async def test(bank: Bank) -> None:
        bank.services.ledger.reserve("llama", pages(100), "boot", 1.0)
        head = Claim("llama", pages(1000), "boot", 1.0)
        waiting = asyncio.create_task(bank.services.admission.admit(head, 30.0))
        await until(lambda: bank.services.admission.waiting == 1)
        answer = (await bank.quote(model="llama", prompt_tokens=1, max_tokens=35)).json()
        assert (answer["total_bytes"], answer["accounts"][0]["available_bytes"]) == (900, 900)
        assert answer["verdict"] == "wait", "35 tokens take longer than the second in which the other can start"
        waiting.cancel()

    run(tmp_path, test)


def test_an_image_is_quoted_on_every_account_it_draws_on(tmp_path: Path) -> None:
    async def test(bank: Bank) -> None:
        raw = (await bank.quote(model="unet", height=40, width=30)).json()
        assert {line["account"] for line in raw["lines"]} == {"unet.canvas", "host"}
        assert raw["total_bytes"] == sum(line["bytes"] for line in raw["lines"])
        assert raw["verdict"] == "admit"
        host = {
            key: next(item for item in (await bank.quote(**body)).json()["accounts"] if item["account"] == "host")
            for key, body in {
                "raw": {"model": "unet", "height": 40, "width": 30},
                "file": {"model": "unet", "height": 40, "width": 30, "format": "png", "encoded_bytes": 700},
                "worst": {"model": "unet", "height": 40, "width": 30, "format": "png"},
                "more": {"model": "unet", "height": 40, "width": 30, "probabilities": True},
            }.items()
        }
        pixels, canvas_bytes = 40 * 30, 4 * 32 * 8 * 2
        assert host["raw"]["price_bytes"] == 4 * pixels + canvas_bytes
        assert host["file"]["price_bytes"] == 8 * pixels + canvas_bytes + 700
        assert host["worst"]["price_bytes"] == 11 * pixels + canvas_bytes
        assert host["more"]["price_bytes"] == 8 * pixels + canvas_bytes

    run(tmp_path, test)


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"model": "llama"}, 400, None),
        ({"model": "llama", "prompt": "a", "prompt_tokens": 3}, 400, None),
        ({"model": "llama", "prompt": ""}, 400, "prompt"),
        ({"model": "llama", "messages": []}, 400, "messages"),
        ({"model": "llama", "prompt_tokens": 0}, 400, "prompt_tokens"),
        ({"model": "llama", "prompt_tokens": "10"}, 400, "prompt_tokens"),
        ({"model": "llama", "prompt_tokens": True}, 400, "prompt_tokens"),
        ({"model": "llama", "prompt_tokens": 10**18}, 400, "prompt_tokens"),
        ({"model": "llama", "prompt_tokens": 2**70}, 400, "prompt_tokens"),
        ({"model": "llama", "prompt_tokens": 64}, 400, "prompt_tokens"),
        ({"model": "llama", "prompt": "word " * 64}, 400, "prompt"),
        ({"model": "llama", "prompt_tokens": 3, "max_tokens": 62}, 400, "max_tokens"),
        ({"model": "llama", "prompt_tokens": 3, "max_tokens": -1}, 400, "max_tokens"),
        ({"model": "llama", "prompt_tokens": 3, "n": 9}, 400, "n"),
        ({"model": "llama", "prompt_tokens": 3, "colour": 1}, 400, "colour"),
        ({"model": "unet", "height": 0, "width": 3}, 400, "height"),
        ({"model": "unet", "height": 3}, 400, "width"),
        ({"model": "unet", "height": 3, "width": 3, "format": "bmp"}, 400, "format"),
        ({"model": "unet", "height": 3, "width": 3, "encoded_bytes": 5}, 400, None),
        ({"model": "unet", "height": 10**9, "width": 10**9}, 413, "height"),
        ({"model": "gpt"}, 404, "model"),
        ({"prompt": "a"}, 400, "model"),
    ],
)
def test_what_would_be_refused_is_refused(tmp_path: Path, body: dict[str, Any], code: int, param: str | None) -> None:
    async def test(bank: Bank) -> None:
        answer = await bank.quote(**body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (code, param), answer.text

    run(tmp_path, test)


@pytest.mark.parametrize(
    ("content", "media_type", "code"),
    [(b"{", "application/json", 400), (b"[]", "application/json", 400), (b"{}", "text/plain", 415)],
)
def test_a_body_that_is_no_json_object_is_refused(tmp_path: Path, content: bytes, media_type: str, code: int) -> None:
    async def test(bank: Bank) -> None:
        answer = await bank.client.post("/v1/quote", content=content, headers={"content-type": media_type})
        assert answer.status_code == code

    run(tmp_path, test)


def test_a_refusal_does_not_repeat_the_prompt(tmp_path: Path) -> None:
    async def test(bank: Bank) -> None:
        for body in ({"prompt": PRIVATE, "n": 99}, {"prompt": [PRIVATE]}, {"messages": [{"role": PRIVATE}]}):
            answer = await bank.quote(model="llama", **body)
            assert answer.status_code == 400
            assert PRIVATE not in answer.text

    run(tmp_path, test)


def test_an_engine_that_is_not_there_cannot_be_quoted(tmp_path: Path) -> None:
    async def test(bank: Bank) -> None:
        del bank.engines.told["unet"]
        answer = await bank.quote(model="unet", height=3, width=3)
        assert answer.status_code == 503
        assert (await bank.quote(model="llama", prompt_tokens=3)).status_code == 200

    run(tmp_path, test)


def test_the_ledger_shows_accounts_leases_and_drift(tmp_path: Path) -> None:
    async def test(bank: Bank) -> None:
        ledger = bank.services.ledger
        lease = ledger.reserve("llama", pages(300), "boot", 5.0)
        ledger.start(lease.id)
        ledger.report_unleased("llama.pages", 50)
        bank.engines.told["llama"] = status("llama", used_bytes=250, leases=(ActiveLease(lease.id, 200),))
        shown = await bank.get("/v1/ledger")
        (account,) = (row for row in shown["accounts"] if row["name"] == "llama.pages")
        assert account == {
            "name": "llama.pages",
            "capacity_bytes": 1000,
            "held_bytes": 300,
            "unleased_bytes": 50,
            "available_bytes": 650,
            "overdraft_bytes": 0,
            "engine_used_bytes": 250,
            "drift_bytes": 100,
        }
        (host,) = (row for row in shown["accounts"] if row["name"] == "host")
        assert (host["engine_used_bytes"], host["drift_bytes"]) == (None, None)
        (row,) = shown["leases"]
        assert 0 <= row.pop("age_s") < 1
        assert 4 < row.pop("expected_left_s") <= 5
        assert row == {
            "id": lease.id,
            "model": "llama",
            "state": "running",
            "boot_id": "boot",
            "lines": {"llama.pages": 300},
            "total_bytes": 300,
            "engine_held_bytes": 200,
        }
        llama, unet = shown["engines"]
        assert (llama["standing"], llama["standing_bytes"]) == ({"weights": 1000, "pool": 500}, 1500)
        assert (llama["limits"]["pages"], unet["limits"]["tile_pixels"]) == (10, 32)
        assert (shown["waiting"], shown["closed"], shown["overrun_bytes"]) == (0, None, 0)

    run(tmp_path, test)


def test_the_ledger_is_shown_without_its_engines(tmp_path: Path) -> None:
    async def test(bank: Bank) -> None:
        bank.engines.told.clear()
        shown = await bank.get("/v1/ledger")
        assert [(engine["model"], engine["ready"]) for engine in shown["engines"]] == [
            ("llama", False),
            ("unet", False),
        ]
        assert all("not answered" in engine["reason"] for engine in shown["engines"])
        assert all(row["drift_bytes"] is None for row in shown["accounts"])

    run(tmp_path, test)


def test_statements_come_newest_first(tmp_path: Path) -> None:
    async def test(bank: Bank) -> None:
        told = Statement("l2", "llama", 300, 200, 7, output_tokens=3)
        journal, now_s = bank.services.journal, time.time()
        journal.append(Entry(now_s, "l1", "unet", "timeout", 30, 0, None, "anyone"))
        journal.append(Entry(now_s, "l2", "llama", "settled", 300, 200, told.to_json(), "anyone"))
        await asyncio.to_thread(journal.flush)
        newest, oldest = (await bank.get("/v1/statements"))["statements"]
        assert (newest["lease"], newest["statement"]["output_tokens"], newest["held_bytes"]) == ("l2", 3, 200)
        assert (oldest["lease"], oldest["outcome"], oldest["statement"]) == ("l1", "timeout", None)
        assert [row["lease"] for row in (await bank.get("/v1/statements?limit=1"))["statements"]] == ["l2"]

    run(tmp_path, test)


@pytest.mark.parametrize("limit", ["0", "-1", "1001", "many", "1e3"])
def test_a_limit_out_of_range_is_refused(tmp_path: Path, limit: str) -> None:
    async def test(bank: Bank) -> None:
        answer = await bank.client.get(f"/v1/statements?limit={limit}")
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "limit")

    run(tmp_path, test)
