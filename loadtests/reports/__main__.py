"""``python -m loadtests.reports NAME FOLDER …``: a campaign's report out of raw data that was measured elsewhere.

Each FOLDER holds a folder for every contestant that was measured there.
"""

import argparse
import sys
from pathlib import Path

from common.errors import SettingsError
from loadtests.campaigns import campaign as campaigns
from loadtests.record import RESULTS
from loadtests.reports import report


def main() -> int:
    """0 when every gate holds, 1 when one does not, 2 when there is nothing to report."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.reports", description=__doc__)
    parser.add_argument("name", help="of the campaign")
    parser.add_argument("folders", type=Path, nargs="*", help="raw data; without it what lies beside the results")
    parser.add_argument("--out", type=Path, default=RESULTS)
    told = parser.parse_args()
    try:
        campaign = campaigns.load(told.name)
        verdicts = report.write(campaign, told.folders or [told.out / campaign.name], told.out)
    except SettingsError as error:
        print(error, file=sys.stderr)
        return 2
    print("\n".join(map(str, verdicts)))
    return 0 if all(verdict.holds for verdict in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
