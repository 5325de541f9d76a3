"""The operators' page: the five golden metrics first."""

from panels import AMBER, GREEN, RED, Panel, Row, or_zero, page, quantiles, rate

READY = (("1", "ready", GREEN), ("0", "not ready", RED))
BREAKER = (("0", "closed", GREEN), ("1", "open", RED))

GOLDEN = Row(
    "The five golden metrics: use, fragmentation, price, queue with refusals, out of memory",
    (
        Panel(
            "Card in use",
            "1 - headroom / card. Headroom is what NVML calls free and what our allocators could give back at once.",
            "percentunit",
            (("vramgate_vram_used_ratio", "{{model}}'s view"),),
            limits=((0.95, RED),),
            most=1,
        ),
        Panel(
            "Fragmentation",
            "1 - largest free block / free cached bytes, of each engine's allocator. Alarm above 0.8.",
            "percentunit",
            (("vramgate_vram_fragmentation_ratio", "{{model}}"),),
            limits=((0.8, RED),),
            most=1,
        ),
        Panel(
            "Price: held / quoted",
            "1 is a price that was exact. Above 1 a request held more than it paid for, which must not happen.",
            "percentunit",
            quantiles("vramgate_price_error_ratio", "model", (0.05, 0.99)),
            limits=((1.01, RED),),
        ),
        Panel(
            "Waiting for bytes",
            "From pricing to the lease: half, and 95 of 100, of the requests waited at most so long.",
            "s",
            quantiles("vramgate_queue_wait_seconds", which=(0.5, 0.95)),
            limits=((5, AMBER),),
        ),
        Panel(
            "Refused",
            "Refusals of admission a second, by reason.",
            "reqps",
            ((or_zero("sum by (reason) (rate(vramgate_refusals_total[1m]))", "reason"), "{{reason}}"),),
        ),
        Panel(
            "Out of memory, by rung",
            "How often an engine ran out, and which rung of its ladder answered; `failed` means that none did.",
            "short",
            ((or_zero("sum by (model, rung) (increase(vramgate_oom_total[5m]))", "rung"), "{{model}} {{rung}}"),),
            limits=((0.5, RED),),
        ),
    ),
)


def _account(name: str, tells: str) -> Panel:
    where = f'{{account="{name}"}}'
    return Panel(
        name,
        tells,
        "bytes",
        (
            (f"vramgate_account_held_bytes{where}", "held by leases"),
            (f"vramgate_account_unleased_bytes{where}", "without a lease"),
            (
                f"vramgate_account_capacity_bytes{where} - vramgate_account_held_bytes{where}"
                f" - vramgate_account_unleased_bytes{where}",
                "available",
            ),
        ),
        stack=True,
    )


OPERATORS = page(
    "vramgate-operators",
    "vramgate: operators",
    "The bank at a glance: is it sound, who holds what, who waits, what was refused and why.",
    (
        GOLDEN,
        Row(
            "Engines",
            (
                Panel(
                    "Ready",
                    "Whether each engine takes work.",
                    "short",
                    (('vramgate_engine_ready{job="vramgate"}', "{{model}}"),),
                    kind="state-timeline",
                    mappings=READY,
                    height=5,
                ),
                Panel(
                    "Breaker",
                    "Open: too little headroom on the card, new work is refused.",
                    "short",
                    (("vramgate_breaker_open", "{{model}}"),),
                    kind="state-timeline",
                    mappings=BREAKER,
                    height=5,
                ),
                Panel(
                    "Readings",
                    "Whether the card's readings can be trusted; without them the ledger alone decides.",
                    "short",
                    (("vramgate_readings_known", "{{model}}"),),
                    kind="state-timeline",
                    mappings=(("1", "known", GREEN), ("0", "unknown", AMBER)),
                    height=5,
                ),
                Panel(
                    "Restarts, canaries, breaker",
                    "In 15 minutes: processes brought back, wrong answers to a known question, seconds of breaker.",
                    "short",
                    (
                        ("increase(vramgate_engine_restarts_total[15m])", "{{model}} restarts"),
                        ('increase(vramgate_canaries_total{outcome="bad"}[15m])', "{{model}} wrong answers"),
                        (
                            "increase(vramgate_breaker_open_seconds_total[15m])",
                            "{{model}} seconds with an open breaker",
                        ),
                    ),
                    limits=((0.5, AMBER),),
                    height=5,
                ),
            ),
        ),
        Row(
            "Accounts",
            (
                _account("llama.pages", "KV cache of the language model, in pages."),
                _account("unet.canvas", "Canvases of images in work."),
                _account("host", "Host memory lent to decoded images and results."),
                Panel(
                    "Overdraft and drift",
                    "Overdraft: used beyond a capacity that shrank. Drift: on the books minus what the engine says.",
                    "short-signed",
                    (
                        ("vramgate_account_overdraft_bytes", "{{account}} overdraft"),
                        ("vramgate_drift_bytes", "{{account}} drift"),
                        ("vramgate_overrun_bytes", "held beyond quotes, ever"),
                    ),
                ),
            ),
        ),
        Row(
            "Queue",
            (
                Panel(
                    "Waiting", "Requests that wait for bytes now.", "short", (("vramgate_waiting_requests", "waiting"),)
                ),
                Panel(
                    "Leases",
                    "Leases that have not ended. Abandoned: the client is gone, the work is not.",
                    "short",
                    (("vramgate_leases", "{{state}}"),),
                    stack=True,
                ),
                Panel(
                    "Refused, by reason",
                    "Refusals of admission a second.",
                    "reqps",
                    ((or_zero("sum by (reason) (rate(vramgate_refusals_total[1m]))", "reason"), "{{reason}}"),),
                    stack=True,
                ),
                Panel(
                    "Answered, by tenant",
                    "Requests a second.",
                    "reqps",
                    (rate("vramgate_tenant_requests_total", "tenant", "outcome"),),
                    stack=True,
                ),
            ),
        ),
        Row(
            "Rungs and prices",
            (
                Panel(
                    "Rungs in 15 minutes",
                    "Which fallback answered how often.",
                    "short",
                    (
                        (
                            or_zero("sum by (model, rung) (increase(vramgate_oom_total[15m]))", "rung"),
                            "{{model}} {{rung}}",
                        ),
                    ),
                    stack=True,
                ),
                Panel(
                    "Llama: held / quoted",
                    "How many requests fell into each bucket.",
                    "percentunit",
                    (('sum by (le) (increase(vramgate_price_error_ratio_bucket{model="llama"}[1m]))', "{{le}}"),),
                    kind="heatmap",
                ),
                Panel(
                    "UNet: held / quoted",
                    "How many requests fell into each bucket.",
                    "percentunit",
                    (('sum by (le) (increase(vramgate_price_error_ratio_bucket{model="unet"}[1m]))', "{{le}}"),),
                    kind="heatmap",
                ),
                Panel(
                    "Prices widened",
                    "What a law was exceeded by widens its price for a while; 1 is the law as it stands.",
                    "percentunit",
                    (("vramgate_price_widened_ratio", "{{model}}"),),
                    limits=((1.01, AMBER),),
                ),
                Panel(
                    "Standing and headroom",
                    "Standing: held whether or not anyone calls (weights, workspaces, pools). Headroom: what is left.",
                    "bytes",
                    (
                        ('vramgate_engine_standing_bytes{job="vramgate"}', "{{model}} standing"),
                        ("vramgate_engine_headroom_bytes", "headroom, as {{model}} sees it"),
                    ),
                ),
                Panel(
                    "Since memory last ran out",
                    "Also before the last restart; nothing where it is not known to have.",
                    "s",
                    (("time() - vramgate_last_oom_timestamp_seconds", "{{model}}"),),
                    kind="stat",
                ),
            ),
        ),
    ),
)
