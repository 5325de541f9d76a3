from frontend.claim import Caller
from frontend.fairness import FairShares

HEAVY, LIGHT = Caller("heavy", 3.0), Caller("light", 1.0)


def test_a_weight_of_three_is_charged_a_third() -> None:
    shares = FairShares()
    assert shares.span(HEAVY, 30.0) == (0.0, 10.0)
    assert shares.span(LIGHT, 30.0) == (0.0, 30.0)


def test_who_was_idle_has_saved_nothing_up() -> None:
    shares = FairShares()
    for _ in range(5):
        shares.serve(LIGHT, shares.enter(LIGHT, 10.0))
    assert shares.span(HEAVY, 30.0).start == 40.0, "where the other one is served now"


def test_what_was_charged_too_much_goes_into_the_next_request_and_the_order_stays_that_of_arrival() -> None:
    shares = FairShares()
    first, second = shares.enter(LIGHT, 100.0), shares.enter(LIGHT, 100.0)
    shares.correct(LIGHT, 60.0)
    third = shares.enter(LIGHT, 100.0)
    assert (first.finish, second.finish, third.finish) == (100.0, 200.0, 240.0)
    shares.correct(LIGHT, 500.0)
    assert shares.enter(LIGHT, 100.0).finish == 240.0
    assert shares.enter(LIGHT, 600.0).finish == 440.0


def test_what_was_charged_too_little_is_made_up_for() -> None:
    shares = FairShares()
    shares.enter(LIGHT, 10.0)
    shares.correct(LIGHT, -25.0)
    assert shares.enter(LIGHT, 10.0).finish == 45.0


def test_credit_of_a_tenant_that_stopped_asking_is_gone() -> None:
    shares = FairShares()
    shares.enter(LIGHT, 10.0)
    shares.correct(LIGHT, 10.0)
    shares.serve(HEAVY, shares.enter(HEAVY, 300.0))
    shares.serve(HEAVY, shares.enter(HEAVY, 300.0))
    assert shares.span(LIGHT, 10.0).finish == 110.0


def test_the_clock_does_not_run_past_those_that_wait() -> None:
    shares = FairShares()
    waiting, passing = shares.enter(LIGHT, 100.0), shares.enter(LIGHT, 1.0)
    shares.serve(LIGHT, passing, earliest=waiting.start)
    assert shares.span(HEAVY, 30.0).start == 0.0
    shares.serve(LIGHT, waiting)
    shares.serve(LIGHT, shares.enter(LIGHT, 1.0))
    assert shares.span(HEAVY, 30.0).start == 101.0


def test_each_priority_has_a_clock_of_its_own() -> None:
    shares, urgent = FairShares(), Caller("urgent", priority=1)
    for _ in range(5):
        shares.serve(urgent, shares.enter(urgent, 10.0))
    assert shares.span(LIGHT, 30.0).start == 0.0
