import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from common.wire import Breaker
from estimator.price import Line, Price
from tests.unit.fake_bank import Bank, open_bank, status


def run(folder: Path, test: Callable[[Bank], Awaitable[None]]) -> None:
    async def opened() -> None:
        async with open_bank(folder) as bank:
            await test(bank)

    asyncio.run(opened())


async def samples(bank: Bank) -> dict[tuple[str, ...], float]:
    """Name and label values, by the label's name -> value."""
    answer = await bank.client.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=")
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def test_it_is_alive_whatever_the_engines_say(tmp_path: Path) -> None:
    async def test(bank: Bank) -> None:
        bank.engines.told.clear()
        assert await bank.get("/healthz") == {"status": "alive"}

    run(tmp_path, test)


def test_it_is_ready_when_every_engine_is(tmp_path: Path) -> None:
    async def test(bank: Bank) -> None:
        assert await bank.get("/readyz") == {
            "ready": True,
            "reasons": {},
            "readings": {"llama": "known", "unet": "known"},
            "admission": "open",
        }

    run(tmp_path, test)


def test_what_is_not_ready_is_named_with_its_reason(tmp_path: Path) -> None:
    async def test(bank: Bank) -> None:
        del bank.engines.told["llama"]
        bank.engines.told["unet"] = status("unet", ready=False, reason="it is stuck", headroom_bytes=None)
        bank.services.admission.close("the breaker is open")
        answer = await bank.client.get("/readyz")
        body = answer.json()
        assert answer.status_code == 503
        assert answer.headers["retry-after"] == "1"
        assert body["reasons"] == {"llama": "it has not answered yet", "unet": "it is stuck"}
        assert body["readings"] == {"llama": "unknown", "unet": "unknown"}
        assert body["admission"] == "the breaker is open"
        assert "it is stuck" in body["error"]["message"]

    run(tmp_path, test)


def test_metrics_are_what_is_now(tmp_path: Path) -> None:
    async def test(bank: Bank) -> None:
        lease = bank.services.ledger.reserve("llama", Price((Line("llama.pages", 300, "x"),)), "boot", 1)
        bank.engines.told["llama"] = status("llama", used_bytes=100)
        bank.engines.told["unet"] = status("unet", breaker=Breaker.OPEN, headroom_bytes=None)
        seen = await samples(bank)
        assert seen["vramgate_account_held_bytes", "llama.pages"] == 300
        assert seen["vramgate_account_capacity_bytes", "llama.pages"] == 1000
        assert seen["vramgate_drift_bytes", "llama.pages"] == 200
        assert seen["vramgate_leases", "reserved"] == 1
        assert seen["vramgate_vram_used_ratio", "llama"] == 0.75
        assert seen["vramgate_vram_fragmentation_ratio", "llama"] == 0.25
        assert seen["vramgate_breaker_open", "unet"] == 1
        assert (seen["vramgate_readings_known", "llama"], seen["vramgate_readings_known", "unet"]) == (1, 0)
        bank.services.ledger.settle(lease.id)
        bank.engines.told.clear()
        seen = await samples(bank)
        assert seen["vramgate_account_held_bytes", "llama.pages"] == 0
        assert seen["vramgate_leases", "reserved"] == 0
        assert seen["vramgate_engine_ready", "llama"] == 0
        assert seen["vramgate_readings_known", "llama"] == 0

    run(tmp_path, test)


def test_asking_for_health_is_not_counted_as_a_request(tmp_path: Path) -> None:
    async def test(bank: Bank) -> None:
        for path in ("/healthz", "/readyz", "/metrics", "/v1/ledger", "/nowhere/at/all"):
            await bank.client.get(path)
        counted = {key[2] for key in await samples(bank) if key[0] == "vramgate_request_seconds_count"}
        assert counted == {"/v1/ledger", "none"}

    run(tmp_path, test)
