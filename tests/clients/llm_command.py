"""The command llm (llm.datasette.io), with the server as an OpenAI-compatible model in extra-openai-models.yaml."""

import json
import os
import subprocess
import sys
import tempfile

import check as c
from check import check, equal, true

MODEL = c.model()
ASK = "Name a colour."
HOME = tempfile.TemporaryDirectory()


def configure():
    with open(os.path.join(HOME.name, "extra-openai-models.yaml"), "w", encoding="utf-8") as f:
        for name, more in (("chat", ""), ("text", "  completion: true\n"), ("none", "")):
            model = MODEL if name != "none" else "no-such"
            f.write(f"- model_id: {name}\n  model_name: {model}\n  api_base: {c.URL}/v1\n{more}")


def llm(*args, status=0, **more):
    p = subprocess.run([os.path.join(os.path.dirname(sys.executable), "llm"), *args], stdin=subprocess.DEVNULL,
                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=120,
                       env={**os.environ, "LLM_USER_PATH": HOME.name, "OPENAI_API_KEY": "none"}, **more)
    equal(p.returncode, status, f"exit of llm {' '.join(args)[:80]}: {p.stderr[-300:]}")
    return p


def ask(*args, **more):
    return llm("-m", "chat", "-o", "temperature", "0", "-o", "max_tokens", "16", *args, **more)


def direct(*messages):
    return c.post("/v1/chat/completions", {"model": MODEL, "temperature": 0, "max_tokens": 16,
                                           "messages": list(messages)})["choices"][0]["message"]["content"]


@check
def models():
    """the model is listed"""
    configure()
    true("chat" in llm("models").stdout, "no model")


@check
def chat():
    """a prompt, streamed and not, with a system prompt: the text of the API"""
    configure()
    want = direct({"role": "user", "content": ASK})
    equal(ask(ASK).stdout.strip(), want.strip())
    equal(ask("--no-stream", ASK).stdout.strip(), want.strip())
    want = direct({"role": "system", "content": "Be brief."}, {"role": "user", "content": ASK})
    equal(ask("-s", "Be brief.", ASK).stdout.strip(), want.strip())


@check
def continues():
    """-c continues the conversation; the log has the usage"""
    configure()
    first = ask(ASK).stdout.rstrip("\n")
    second = ask("-c", "Another one.").stdout
    want = direct({"role": "user", "content": ASK}, {"role": "assistant", "content": first},
                  {"role": "user", "content": "Another one."})
    equal(second.strip(), want.strip())
    log = json.loads(llm("logs", "-n", "1", "--json").stdout)[0]
    true(log["input_tokens"] > 0 and 0 < log["output_tokens"] <= 16, log)


@check
def completion():
    """a model with completion: true"""
    configure()
    text = llm("-m", "text", "-o", "temperature", "0", "-o", "max_tokens", "8", "The capital of France is").stdout
    true("Paris" in text, text)


@check
def errors():
    """an unknown model, an overlong prompt: the message is printed"""
    configure()
    true("does not exist" in llm("-m", "none", ASK, status=1).stderr, "404")
    true("maximum context length is" in ask("word " * 20000, status=1).stderr, "400")


if __name__ == "__main__":
    raise SystemExit(c.main("llm"))
