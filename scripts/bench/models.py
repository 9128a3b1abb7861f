"""Model files of the benchmarks: the default model, and models that are made from it or from random numbers. They stay in the
cache folder."""

import os
import subprocess
import sys

from . import peer
from .figures import progress
from .programs import SCRIPTS, Failed

CACHE = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "phasepipe")
MODELS = os.path.join(CACHE, "bench")


def default_model():
    return os.path.join(CACHE, "SmolLM2-135M-Instruct.Q4_1.gguf")


def made(path, cmd):
    """`path`, made by cmd(temporary name) if it does not exist."""
    if not os.path.exists(path):
        progress(f"making {os.path.basename(path)}")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        temp = f"{path}.{os.getpid()}"
        run = subprocess.run(cmd(temp), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if run.returncode != 0:
            if os.path.exists(temp):
                os.unlink(temp)
            raise Failed(f"{' '.join(cmd(temp))}: exit {run.returncode}: {run.stdout[-1500:].strip()}")
        os.replace(temp, path)
    return path


def requantised(model, kind):
    """The model in another type, by llama.cpp's quantiser; None if that is missing."""
    stem = os.path.basename(model).removesuffix(".gguf")
    path = os.path.join(MODELS, f"{stem}.{kind}.gguf")
    if not os.path.exists(path) and peer.missing("llama-quantize"):
        return None
    return made(path, lambda out: [peer.find("llama-quantize"), "--allow-requantize", model, out, kind])


def shaped(kind):
    """Random weights in the shape of Llama 3.2 1B."""
    return made(os.path.join(MODELS, f"1b.{kind}.gguf"),
                lambda out: [sys.executable, os.path.join(SCRIPTS, "make-random-model"), "--type", kind, out])


def remove(model, packed):
    """Removes a model of MODELS and its packed copies; other files stay."""
    if os.path.dirname(model) == MODELS:
        for path in (model, *packed):
            if os.path.exists(path):
                os.unlink(path)
