import pytest
from rich.console import Console

from common.errors import SettingsError
from common.settings import Settings, load
from frontend import doctor
from frontend.commands.check import differences, report
from frontend.doctor import Finding, Level


def written(settings: Settings) -> tuple[bool, str]:
    console = Console(width=100)
    with console.capture() as captured:
        good = report(settings, console)
    return good, captured.get()


def test_what_is_not_a_default_is_told_and_secrets_are_not() -> None:
    settings = load(
        {"VRAMGATE_LLAMA__MAX_BATCH": "3", "VRAMGATE_TRITON__ADMIN_KEY": "hush", "VRAMGATE_TENANTS__KEY": "x"}
    )
    assert dict(differences(settings)) == {
        "llama.max_batch": 3,
        "triton.admin_key": "(set)",
        "tenants.key": "(set)",
    }


def test_every_setting_that_is_hidden_elsewhere_is_a_secret_here() -> None:
    from frontend.commands.check import SECRETS

    hidden = {
        f"{section}.{key}"
        for section in Settings.model_fields
        for key, field in type(getattr(Settings(), section)).model_fields.items()
        if not field.repr
    }
    assert hidden <= SECRETS


def test_a_finding_that_is_bad_makes_the_check_fail_and_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def findings(settings: Settings) -> list[Finding]:
        return [Finding("card", Level.OK, "fine"), Finding("keys", Level.BAD, "none", "make one")]

    monkeypatch.setattr(doctor, "requirements", findings)
    good, text = written(Settings())
    assert not good
    assert "settings: all defaults" in text
    assert "✗ keys: none" in text
    assert "→ make one" in text


def test_a_setting_that_does_not_exist_is_named() -> None:
    with pytest.raises(SettingsError, match=r"llama\.max_bach: no such setting"):
        load({"VRAMGATE_LLAMA__MAX_BACH": "3"})


def test_the_card_of_a_machine_without_the_models_does_not_matter() -> None:
    elsewhere = Settings.model_validate({"triton": {"url": "http://127.0.0.1:1"}, "card": {"device": "GPU-none"}})
    subjects = {finding.subject for finding in doctor.requirements(elsewhere)}
    assert "card" not in subjects
    assert "triton" in subjects
