"""Triton with the same models in a ``model.py`` that people write first, and nothing in front of it.

``python -m loadtests.baselines.plain_triton --port 8090`` becomes the model server; the models are those of the
settings.
"""

import argparse
import os
import tempfile
from pathlib import Path

from frontend import tritonserver

MODELS = Path(__file__).with_name("triton_models")


def main() -> None:
    """Replaces this process by the server's."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.baselines.plain_triton", description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    asked = parser.parse_args()
    installation = tritonserver.locate()
    folder = Path(tempfile.mkdtemp(prefix="plain-triton-"))
    command = (
        str(installation.binary),
        f"--model-repository={tritonserver.plain_repository(MODELS, folder)}",
        f"--backend-directory={tritonserver.plain_backends(installation, folder)}",
        "--disable-auto-complete-config",
        f"--http-port={asked.port}",
        "--http-address=127.0.0.1",
        "--allow-grpc=false",
        "--allow-metrics=false",
        "--exit-timeout-secs=3",
        f"--backend-config=python,shm-region-prefix-name=plain-{asked.port}-",
    )
    os.execve(installation.binary, command, tritonserver.environment(installation, os.environ))


if __name__ == "__main__":
    main()
