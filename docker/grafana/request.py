"""The page of a request's life."""

from panels import AMBER, RED, Panel, Row, or_zero, page, quantiles, rate

REQUEST = page(
    "vramgate-request",
    "vramgate: a request's life",
    "From the door to the statement: how many come, how long each stage takes, what they did.",
    (
        Row(
            "The way of a request",
            (
                Panel(
                    "",
                    "",
                    "short",
                    (),
                    kind="text",
                    height=3,
                    text=(
                        "**priced** → **waits** for its bytes (queue wait) → **leased** → the engine runs it "
                        "(first token, answer) → **settled** by its statement (held / quoted). It can end early at "
                        "each step: 400 invalid, 401 no key, 413 never fits, 429 not now, 503 engine not ready, "
                        "504 deadline."
                    ),
                ),
            ),
        ),
        Row(
            "At the door",
            (
                Panel(
                    "Requests",
                    "Answered a second, by route.",
                    "reqps",
                    (rate("vramgate_requests_total", "route", where='{model!="none"}'),),
                    stack=True,
                ),
                Panel(
                    "Outcomes",
                    "`ok` or the error's code, also of one that came after the answer had begun.",
                    "reqps",
                    (rate("vramgate_requests_total", "outcome", where='{model!="none"}'),),
                    stack=True,
                ),
                Panel(
                    "Share of answers that are good",
                    "Of everything that was priced, in the last 5 minutes.",
                    "percentunit",
                    (
                        (
                            'sum(rate(vramgate_requests_total{model!="none", outcome="ok"}[5m]))'
                            ' / sum(rate(vramgate_requests_total{model!="none"}[5m]))',
                            "ok",
                        ),
                    ),
                    kind="stat",
                    most=1,
                ),
            ),
        ),
        Row(
            "Waiting",
            (
                Panel(
                    "Queue wait",
                    "From pricing to the lease.",
                    "s",
                    quantiles("vramgate_queue_wait_seconds"),
                    limits=((5, AMBER),),
                ),
                Panel(
                    "In the line and on the way",
                    "Waiting for bytes; leases by state.",
                    "short",
                    (("vramgate_waiting_requests", "waiting"), ("vramgate_leases", "{{state}}")),
                ),
                Panel(
                    "Was Retry-After right?",
                    "Seconds until a refused request would have started / seconds it was told. 1 is exact.",
                    "percentunit",
                    quantiles("vramgate_retry_after_ratio", which=(0.1, 0.5, 0.9)),
                ),
                Panel(
                    "Refusals",
                    "By reason, a second.",
                    "reqps",
                    ((or_zero("sum by (reason) (rate(vramgate_refusals_total[1m]))", "reason"), "{{reason}}"),),
                    stack=True,
                ),
            ),
        ),
        Row(
            "Running",
            (
                Panel(
                    "First token",
                    "From pricing to the first text.",
                    "s",
                    quantiles("vramgate_time_to_first_token_seconds"),
                ),
                Panel(
                    "Whole answer",
                    "From request to the end of the answer.",
                    "s",
                    quantiles("vramgate_request_seconds", "model", (0.5, 0.95)),
                ),
                Panel("Tokens", "Of finished requests, a second.", "short", (rate("vramgate_tokens_total", "kind"),)),
                Panel(
                    "Pixels",
                    "Of segmented images, a second.",
                    "short",
                    (("rate(vramgate_pixels_total[1m])", "pixels"),),
                ),
            ),
        ),
        Row(
            "Settled",
            (
                Panel(
                    "Held / quoted",
                    "1 is a price that was exact.",
                    "percentunit",
                    quantiles("vramgate_price_error_ratio", "model", (0.05, 0.5, 0.99)),
                    limits=((1.01, RED),),
                ),
                Panel(
                    "Held in all",
                    "Bytes held by leases, by account.",
                    "bytes",
                    (("vramgate_account_held_bytes", "{{account}}"),),
                    stack=True,
                ),
                Panel(
                    "Run again, rescued",
                    "Requests run once more because an engine's process ended; rungs that helped.",
                    "short",
                    (
                        ("increase(vramgate_reruns_total[15m])", "{{model}} run again"),
                        ("sum by (rung) (increase(vramgate_oom_total[15m])) > 0", "rung {{rung}}"),
                    ),
                ),
                Panel(
                    "Byte-seconds, by tenant",
                    "What each tenant holds on average.",
                    "bytes",
                    (rate("vramgate_tenant_byte_seconds_total", "tenant"),),
                    stack=True,
                ),
            ),
        ),
    ),
)
