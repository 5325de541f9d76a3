import pytest

from common.errors import REQUEST_ERRORS, NotNow, RequestError, UpstreamBroken, from_http_status, from_text


@pytest.mark.parametrize("cls", REQUEST_ERRORS)
def test_every_error_survives_the_way_through_triton(cls: type[RequestError]) -> None:
    sent = cls(
        "two lines\nand {braces}",
        param="max_tokens",
        numbers={"price_bytes": 7, "capacity_bytes": 5},
        retry_after_s=1.5,
    )
    got = from_text(sent.to_text())
    assert type(got) is cls
    assert (got.message, got.param, got.numbers, got.retry_after_s) == (
        sent.message,
        sent.param,
        sent.numbers,
        sent.retry_after_s,
    )


def test_prefixes_and_codes_are_unambiguous() -> None:
    assert len({cls.kind.prefix for cls in REQUEST_ERRORS}) == len(REQUEST_ERRORS)
    assert len({cls.kind.code for cls in REQUEST_ERRORS}) == len(REQUEST_ERRORS)


def test_a_prefix_is_found_behind_what_triton_puts_in_front() -> None:
    got = from_text("in ensemble 'x', [RESOURCE_EXHAUSTED] no pages left")
    assert isinstance(got, NotNow)
    assert got.message == "no pages left"


@pytest.mark.parametrize("text", ["", "Stub process 'llama_0_0' is not healthy.", "[WHAT] is this"])
def test_a_foreign_text_is_an_upstream_fault_and_keeps_its_words(text: str) -> None:
    got = from_text(text)
    assert isinstance(got, UpstreamBroken)
    assert text.strip() in got.message


def test_body_has_the_numbers_that_decided() -> None:
    body = NotNow("later", numbers={"price_bytes": 3, "available_bytes": 1}).to_body()
    assert body == {
        "error": {
            "message": "later",
            "type": "rate_limit_error",
            "param": None,
            "code": "rate_limit_exceeded",
            "price_bytes": 3,
            "available_bytes": 1,
        }
    }


def test_statuses_map_back_to_the_general_class() -> None:
    assert from_http_status(413, "x").kind.http_status == 413
    assert from_http_status(418, "x").kind.http_status == 400
    assert from_http_status(599, "x").kind.http_status == 500
