"""What Prometheus is told: families of fixed names whose labels come from fixed sets, so no client can add a series."""

import time
from functools import cache
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from common.errors import REQUEST_ERRORS
from common.wire import ACCOUNTS, Breaker, EngineStatus, Statement
from frontend.ledger import Clock, LeaseState, Ledger
from frontend.tenants import UNNAMED

Family = TypeVar("Family", Counter, Histogram)

CONTENT_TYPE = CONTENT_TYPE_LATEST
OTHER = "other"
"""Label of whatever is in no fixed set."""

MODELS = frozenset({"llama", "unet", "none"})
REASONS = frozenset(error.kind.code for error in REQUEST_ERRORS)
OUTCOMES = REASONS | {"ok"}
RUNGS = frozenset({"reclaim", "halve", "preempt", "host_canvas", "host_cpu", "failed"})
ROUTES = frozenset(
    {
        "none",
        "/predict",
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/ledger",
        "/v1/models",
        "/v1/models/{model:path}",
        "/v1/quote",
        "/v1/segment",
        "/v1/statements",
    }
)
V2 = "/v2"
V2_VERBS = frozenset({"infer", "generate", "generate_stream"})

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
RATIOS = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0, 1.01, 1.05, 1.1, 1.25, 1.5, 2.0, 4.0)


class Metrics:
    """All families in a registry of their own; one method per event, and one per thing that is looked at."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._registry = CollectorRegistry()
        self._make_requests()
        self._make_accounts()
        self._make_engines()
        self._begin_at_zero()

    def request_finished(self, model: str, route: str, outcome: str, seconds: float, tenant: str = UNNAMED) -> None:
        """An HTTP request was answered; `route` is the route's template, `outcome` ``ok`` or an error's code.

        `tenant` is a name out of the key file, never something that a client has sent.
        """
        model, route = _one_of(model, MODELS), route_label(route)
        self._requests.labels(model, route, _one_of(outcome, OUTCOMES)).inc()
        self._request_seconds.labels(model, route).observe(seconds)
        self._tenant_requests.labels(tenant, _one_of(outcome, OUTCOMES)).inc()

    def first_token(self, seconds: float) -> None:
        """The first piece of a text came so long after the request was priced."""
        self._first_token.observe(seconds)

    def queue_waited(self, seconds: float) -> None:
        """A request got its lease after so long."""
        self._queue_wait.observe(seconds)

    def spent(self, tenant: str, byte_s: float) -> None:
        """A tenant, by its name in the key file, has held so many byte-seconds."""
        self._tenant_byte_seconds.labels(tenant).inc(byte_s)

    def looked_back(self, predicted_s: float, real_s: float) -> None:
        """A refused request, told to come back after `predicted_s`, would have started after `real_s`."""
        self._retry_after.observe(real_s / predicted_s)

    def refused(self, reason: str) -> None:
        """Admission said no; `reason` is the error's code."""
        self._refusals.labels(_one_of(reason, REASONS)).inc()

    def settled(self, statement: Statement) -> None:
        """A request ended with a statement: what it used against its quote, and its work."""
        self.price_error(statement.model, statement.held_bytes, statement.quoted_bytes)
        self._tokens.labels("prompt").inc(statement.prompt_tokens)
        self._tokens.labels("output").inc(statement.output_tokens)
        self._pixels.inc(statement.pixels)

    def observe_widened(self, model: str, ratio: float) -> None:
        """What the prices of a model are multiplied with at present, since work has used more than it was quoted."""
        self._widened.labels(_one_of(model, MODELS)).set(ratio)

    def price_error(self, model: str, used_bytes: int, quoted_bytes: int) -> None:
        """What was held against what was quoted; nothing is said of work without a quote."""
        if quoted_bytes > 0:
            self._price_error.labels(_one_of(model, MODELS)).observe(used_bytes / quoted_bytes)

    def observe_ledger(self, ledger: Ledger) -> None:
        """Accounts and leases as they are now."""
        for view in ledger.accounts():
            account = _one_of(view.name, frozenset(ACCOUNTS))
            self._capacity.labels(account).set(view.capacity_bytes)
            self._held.labels(account).set(view.held_bytes)
            self._unleased.labels(account).set(view.unleased_bytes)
            self._overdraft.labels(account).set(view.overdraft_bytes)
        for state in (LeaseState.RESERVED, LeaseState.RUNNING, LeaseState.ABANDONED):
            self._leases.labels(state).set(len(ledger.leases(state)))
        self._overrun.set(ledger.overrun_bytes)

    def observe_drift(self, account: str, drift_bytes: int) -> None:
        """What the ledger has on its books for an account minus what the engine says it uses."""
        self._drift.labels(_one_of(account, frozenset(ACCOUNTS))).set(drift_bytes)

    def observe_engine(self, status: EngineStatus) -> None:
        """An engine's newest status; the more often, the finer the seconds its breaker was open."""
        model = _one_of(status.model, MODELS)
        headroom_bytes, card_bytes = status.headroom_bytes, status.card_bytes
        known = headroom_bytes is not None and bool(card_bytes)
        used_ratio = 1 - headroom_bytes / card_bytes if headroom_bytes is not None and card_bytes else float("nan")
        self._ready.labels(model).set(status.ready)
        self._used_ratio.labels(model).set(used_ratio)
        self._readings_known.labels(model).set(known)
        self._fragmentation.labels(model).set(status.fragmentation_ratio)
        self._standing.labels(model).set(sum(status.standing.values()))
        if status.last_oom_s is not None:
            self._last_oom.labels(model).set(status.last_oom_s)
        self._observe_breaker(model, status.breaker is Breaker.OPEN)
        self._observe_oom(model, status)

    def engine_lost(self, model: str) -> None:
        """An engine does not answer: it is not ready, has no breaker, and tells nothing of the card."""
        model = _one_of(model, MODELS)
        self._ready.labels(model).set(0)
        self._used_ratio.labels(model).set(float("nan"))
        self._readings_known.labels(model).set(0)
        self._observe_breaker(model, is_open=False)

    def engine_restarted(self, model: str) -> None:
        """A try to bring an engine's process back begins."""
        self._restarts.labels(_one_of(model, MODELS)).inc()

    def canary_answered(self, model: str, *, good: bool) -> None:
        """An engine was asked for a known answer."""
        self._canaries.labels(_one_of(model, MODELS), "good" if good else "bad").inc()

    def ran_again(self, model: str) -> None:
        """A request whose engine's process ended under it is run once more."""
        self._reruns.labels(_one_of(model, MODELS)).inc()

    def observe_line(self, waiting: int) -> None:
        """How many requests wait for bytes."""
        self._waiting.set(waiting)

    def observe_journal(self, dropped: int) -> None:
        """How many finished leases the journal could not keep."""
        self._journal_dropped.set(dropped)

    def render(self) -> bytes:
        """Everything, in the text format of `CONTENT_TYPE`."""
        return generate_latest(self._registry)

    def _observe_breaker(self, model: str, is_open: bool) -> None:
        now_s = self._clock()
        open_since_s = self._open_since_s.pop(model, None)
        if open_since_s is not None:
            self._breaker_seconds.labels(model).inc(now_s - open_since_s)
        if is_open:
            self._open_since_s[model] = now_s
        self._breaker_open.labels(model).set(is_open)

    def _observe_oom(self, model: str, status: EngineStatus) -> None:
        """What an engine has counted since the last look; a new process has counted from 0."""
        boot_id, seen = self._oom_seen.get(model, ("", {}))
        told = {rung: status.totals.get(f"oom_{rung}", 0) for rung in RUNGS}
        for rung, count in told.items():
            new = count - (seen.get(rung, 0) if boot_id == status.boot_id else 0)
            if new > 0:
                self._oom.labels(model, rung).inc(new)
        self._oom_seen[model] = status.boot_id, told

    def _make_requests(self) -> None:
        self._requests = self._counter("requests", "HTTP requests answered", "model", "route", "outcome")
        self._request_seconds = self._histogram("request_seconds", "From request to answer", SECONDS, "model", "route")
        self._first_token = self._histogram("time_to_first_token_seconds", "From pricing to the first text", SECONDS)
        self._queue_wait = self._histogram("queue_wait_seconds", "From pricing to the lease", SECONDS)
        self._refusals = self._counter("refusals", "Requests that admission refused", "reason")
        self._retry_after = self._histogram(
            "retry_after_ratio", "Seconds until a refused request would have started / seconds it was told", RATIOS
        )
        self._price_error = self._histogram("price_error_ratio", "Bytes held / bytes quoted", RATIOS, "model")
        self._widened = self._gauge(
            "price_widened_ratio", "Prices asked / prices by the law; 1 while they hold", "model"
        )
        self._oom = self._counter(
            "oom", "Times that memory ran out, by the rung that helped; failed: none", "model", "rung"
        )
        self._tokens = self._counter("tokens", "Tokens of finished requests", "kind")
        self._pixels = self._counter("pixels", "Pixels of segmented images")
        self._tenant_requests = self._counter("tenant_requests", "HTTP requests answered", "tenant", "outcome")
        self._tenant_byte_seconds = self._counter("tenant_byte_seconds", "Bytes held x seconds", "tenant")
        self._waiting = self._gauge("waiting_requests", "Requests that wait for bytes")

    def _make_accounts(self) -> None:
        self._capacity = self._gauge("account_capacity_bytes", "Bytes an account has in all", "account")
        self._held = self._gauge("account_held_bytes", "Bytes held by leases", "account")
        self._unleased = self._gauge("account_unleased_bytes", "Bytes held by work without a lease", "account")
        self._overdraft = self._gauge("account_overdraft_bytes", "Bytes used beyond a shrunken capacity", "account")
        self._drift = self._gauge("drift_bytes", "Bytes on the books - bytes the engine says it uses", "account")
        self._leases = self._gauge("leases", "Leases that have not ended", "state")
        self._overrun = self._gauge("overrun_bytes", "Sum of what engines held beyond what was quoted")
        self._journal_dropped = self._gauge("journal_dropped_entries", "Finished leases the journal could not keep")

    def _make_engines(self) -> None:
        self._ready = self._gauge("engine_ready", "1 while the engine takes work", "model")
        self._used_ratio = self._gauge("vram_used_ratio", "1 - headroom / card; NaN while unknown", "model")
        self._fragmentation = self._gauge(
            "vram_fragmentation_ratio", "1 - largest free block / free cached bytes", "model"
        )
        self._standing = self._gauge("engine_standing_bytes", "Bytes held whether or not anyone calls", "model")
        self._readings_known = self._gauge("readings_known", "1 while the card's readings can be trusted", "model")
        self._breaker_open = self._gauge("breaker_open", "1 while the engine's breaker refuses work", "model")
        self._breaker_seconds = self._counter("breaker_open_seconds", "Time with an open breaker", "model")
        self._last_oom = self._gauge("last_oom_timestamp_seconds", "Unix time when memory last ran out", "model")
        self._restarts = self._counter("engine_restarts", "Tries to bring an engine's process back", "model")
        self._canaries = self._counter("canaries", "Questions with a known answer", "model", "outcome")
        self._reruns = self._counter("reruns", "Requests run again after their engine's process had ended", "model")
        self._open_since_s: dict[str, float] = {}
        self._oom_seen: dict[str, tuple[str, dict[str, int]]] = {}
        """Model -> boot id, and what that process had counted by rung."""

    def _begin_at_zero(self) -> None:
        """A counter that appears with its first event has not increased, as Prometheus sees it."""
        for reason in REASONS:
            self._refusals.labels(reason)
        for model in MODELS - {"none"}:
            for counter in (self._restarts, self._reruns, self._breaker_seconds):
                counter.labels(model)
            for outcome in ("good", "bad"):
                self._canaries.labels(model, outcome)
            for rung in RUNGS:
                self._oom.labels(model, rung)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return _remembering(Counter(f"vramgate_{name}", text, labels, registry=self._registry))

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"vramgate_{name}", text, labels, registry=self._registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        return _remembering(Histogram(f"vramgate_{name}", text, labels, registry=self._registry, buckets=buckets))


def _remembering(family: Family) -> Family:
    """The family, whose series are found without a lock: the sets of labels are fixed, so there are few."""
    family.labels = cache(family.labels)  # type: ignore[method-assign]
    return family


def route_label(route: str) -> str:
    """The fixed label of a route's template; for ``/v2`` its last word, where that is one that costs bytes."""
    if route.split("/")[:2] == ["", "v2"]:
        verb = route.rsplit("/", 1)[-1]
        return f"{V2}/{verb}" if verb in V2_VERBS else V2
    return _one_of(route, ROUTES)


def _one_of(value: str, fixed: frozenset[str]) -> str:
    return value if value in fixed else OTHER
