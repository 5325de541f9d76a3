from frontend.restarts import Restarts


def test_waits_double_until_it_is_given_up() -> None:
    restarts = Restarts(lambda: 0.0, most=7)
    assert [restarts.wait_s() for _ in range(7)] == [0.5, 1.0, 2.0, 4.0, 8.0, 8.0, None]


def test_a_long_healthy_run_wipes_the_slate() -> None:
    now_s = 0.0
    restarts = Restarts(lambda: now_s, most=3, window_s=60)
    for hour in range(10):
        now_s = 3600.0 * hour
        assert restarts.wait_s() == 0.5
