from rich.console import Console

from frontend.commands.profile import _reason, render

TOLD = {
    "model": "llama",
    "device": "cpu",
    "work": "512 prompt tokens",
    "standing_bytes": 2**30,
    "peak_bytes": None,
    "allocated_bytes": 2**20,
    "parts": {"attention": 3 * 2**18, "MLP": 2**18},
    "operators": [{"name": "aten::mm", "calls": 1234, "allocated_bytes": 2**19}],
}


def test_parts_and_operators_have_their_share_of_the_whole() -> None:
    console = Console(width=80)
    with console.capture() as captured:
        console.print(render(TOLD))
    text = captured.get()
    for fact in ("75%", "25%", "aten::mm", "50%", "1,234", "not told on the CPU", "standing 1.0 GiB"):
        assert fact in text


def test_of_all_that_a_failed_run_prints_our_own_words_are_told() -> None:
    assert _reason("USDT:1 x\nvramgate: card.device: no such device\nUSDT: stop\n") == "card.device: no such device"
    assert _reason("Traceback\nRuntimeError: no\n") == "RuntimeError: no"
    assert _reason("") == "it gave no reason"
