"""aider, as a command in a folder of its own: questions, an edit of a file, errors. The edit is in the format `whole`, which the
test's small model can follow for a file of one word."""

import os
import subprocess
import sys
import tempfile

import check as c
from check import check, equal, true

MODEL = c.model()
ASK = "What is two plus two?"
SETTINGS = f"""- name: openai/{MODEL}
  edit_format: whole
  use_temperature: 0.0
  extra_params:
    max_tokens: 100
"""


def aider(*args, model=MODEL, files=()):
    """(output, {name: content} of the files afterwards)."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in (*files, ("settings.yml", SETTINGS)):
            with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
                f.write(text)
        p = subprocess.run(
            [os.path.join(os.path.dirname(sys.executable), "aider"), "--model", f"openai/{model}", "--weak-model",
             f"openai/{model}", "--model-settings-file", "settings.yml", "--no-git", "--yes-always", "--analytics-disable",
             "--no-check-update", "--no-show-release-notes", "--no-show-model-warnings", "--no-pretty", "--map-tokens", "0",
             "--no-auto-lint", *args, *(name for name, _ in files)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120, cwd=folder,
            env={**os.environ, "HOME": folder, "OPENAI_API_KEY": "none", "OPENAI_API_BASE": c.URL + "/v1", "COLUMNS": "500",
                 "LITELLM_LOCAL_MODEL_COST_MAP": "True"})
        equal(p.returncode, 0, f"exit of aider: {p.stdout[-400:]}")
        left = {}
        for name in os.listdir(folder):
            if os.path.isfile(os.path.join(folder, name)):
                with open(os.path.join(folder, name), encoding="utf-8") as f:
                    left[name] = f.read()
        return p.stdout, left


def answer(out):
    """The text between the banner and the count of tokens, whose lines are wrapped."""
    lines = [x for x in out.splitlines() if x.strip()]
    begin = max(i for i, x in enumerate(lines) if x.startswith("Repo-map: ") or x.endswith(" to the chat."))
    end = next(i for i, x in enumerate(lines) if x.startswith("Tokens: "))
    return " ".join(" ".join(lines[begin + 1:end]).split())


@check
def question():
    """a question, streamed and not: the same text"""
    text = answer(aider("--chat-mode", "ask", "--message", ASK)[0])
    true(len(text) > 10, text)
    equal(answer(aider("--chat-mode", "ask", "--no-stream", "--message", ASK)[0]), text)


@check
def file():
    """a question about a file of the chat"""
    out, left = aider("--chat-mode", "ask", "--message", "What does it do?",
                      files=[("add.py", "def add(a, b):\n    return a + b\n")])
    true("Added add.py to the chat." in out and answer(out), out[-400:])
    equal(left["add.py"], "def add(a, b):\n    return a + b\n")


@check
def edit():
    """an edit is applied"""
    out, left = aider("--message", "Reply with only this:\n\nhello.txt\n```\nhello\n```\n")
    name = next((x.removeprefix("Applied edit to ") for x in out.splitlines() if x.startswith("Applied edit to ")), None)
    true(name in left, f"{sorted(left)}: {out[-400:]}")


@check
def errors():
    """an overlong file is a token limit, an unknown model the error of the server"""
    out, _ = aider("--chat-mode", "ask", "--message", "What is it?", files=[("long.txt", "word " * 20000)])
    true("has hit a token limit!" in out, out[-600:])
    out, _ = aider("--chat-mode", "ask", "--message", ASK, model="no-such")
    true("does not exist" in out, out[-600:])


if __name__ == "__main__":
    raise SystemExit(c.main("aider"))
