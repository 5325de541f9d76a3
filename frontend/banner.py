"""What is printed when the service is up."""

import os
import sys
from pathlib import Path

from common.settings import Settings
from frontend.service_client import local_url

SAMPLE = Path(__file__).resolve().parent.parent / "docs" / "nuclei.png"
BANNER = """
vramgate is up at {url}
Ctrl-C stops it. The model server's log: {log}

Ask the language model:
  curl -s {url}/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{{"model": "{llama}", "temperature": 0,
         "messages": [{{"role": "user", "content": "What is the capital of France?"}}]}}'

Segment an image of cell nuclei:
  curl -s {url}/v1/segment -F image=@{sample} -F format=overlay -o overlay.png

See what a request would cost, in bytes, before it runs:
  {vramgate} quote --port {port} --prompt 'Once upon a time' --max-tokens 400
"""


def banner(settings: Settings, log: Path) -> str:
    """Where the service is and three commands to copy."""
    return BANNER.format(
        url=local_url(settings.server),
        log=log,
        llama=settings.llama.served_name,
        sample=_short(SAMPLE),
        vramgate=_short(Path(sys.executable).parent / "vramgate"),
        port=settings.server.port,
    ).rstrip()


def _short(path: Path) -> str:
    """`path` as one would type it here, quoted for a shell where it must be."""
    relative = os.path.relpath(path)
    text = str(path) if relative.startswith("..") else relative
    return f"'{text}'" if " " in text else text
