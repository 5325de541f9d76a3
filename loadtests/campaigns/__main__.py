"""``python -m loadtests.campaigns NAME``: runs a campaign, writes its report, fails where a gate does not hold."""

import argparse
import sys
import tempfile
from pathlib import Path

from common.errors import SettingsError
from loadtests.campaigns import campaign as campaigns
from loadtests.campaigns import random_models
from loadtests.campaigns.run import Asked, run
from loadtests.record import RESULTS
from loadtests.reports import report


def main() -> int:
    """0 when every gate holds, 1 when one does not, 2 when nothing could be measured."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.campaigns", description=__doc__)
    parser.add_argument("name", help="of a campaign in loadtests/campaigns, or a TOML file")
    parser.add_argument("--only", help="contestants, separated by commas, instead of the campaign's")
    parser.add_argument("--phase-s", type=float, default=0.0, help="seconds of arrivals per phase, for a first look")
    parser.add_argument("--web", action="store_true", help="with locust's page on port 8089")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for results")
    parser.add_argument("--no-report", action="store_true", help="raw data only; reports are made elsewhere")
    told = parser.parse_args()
    try:
        campaign = campaigns.load(told.name)
        asked = Asked(campaigns.path_of(told.name).resolve(), told.phase_s, told.web)
        played = campaign.faster(told.phase_s) if told.phase_s else campaign
        folder = told.out / campaign.name
        with tempfile.TemporaryDirectory() as models:
            model_folder = random_models.folder_of(campaign.model, Path(models))
            for name in told.only.split(",") if told.only else campaign.contestants:
                run(name, played, asked, folder / name, model_folder)
        if told.no_report:
            return 0
        verdicts = report.write(played, [folder], told.out)
    except SettingsError as error:
        print(error, file=sys.stderr)
        return 2
    print("\n".join(map(str, verdicts)))
    return 0 if all(verdict.holds for verdict in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
