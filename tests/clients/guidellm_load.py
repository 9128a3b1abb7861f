"""guidellm: a load of synthetic prompts, sequentially and concurrently. Every request succeeds and returns the requested
number of tokens."""

import json
import os
import subprocess
import sys
import tempfile

import check as c
from check import check, equal, true

TOKENIZER = c.need(os.environ.get("PHASEPIPE_VLLM"), "PHASEPIPE_VLLM: a folder with a tokenizer") + "/model"
N, IN, OUT = 10, 64, 24


def load(profile, *options):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "result.json")
        cmd = [os.path.join(os.path.dirname(sys.executable), "guidellm"), "run", "--profile", profile, "--constraint",
               f"kind=max_requests,count={N}", "--tokenizer", f"kind=hf_auto,model={TOKENIZER}", "--data",
               f"kind=synthetic_text,prompt_tokens={IN},output_tokens={OUT}", "--output", f"kind=json,path={path}",
               "--disable-console", *options]
        run = subprocess.run(cmd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300,
                             env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"})
        true(run.returncode == 0 and os.path.exists(path), f"exit {run.returncode}: {run.stdout[-800:]}")
        with open(path, encoding="utf-8") as f:
            r = json.load(f)["benchmarks"][0]
    made = r["scheduler_state"]  # what it measures may be less: at the edges of its window a request may fall out
    equal([made[f"{k}_requests"] for k in ("successful", "errored", "cancelled")], [N, 0, 0],
          f"successful, errored, cancelled: {str(r['requests']['errored'])[:300]}")
    answers = r["requests"]["successful"]
    equal({a["output_metrics"]["text_tokens"] for a in answers}, {OUT}, "tokens of an answer")
    true(all(a["output"] for a in answers), "an empty answer")
    return r, answers


@check
def chat():
    """chat, sequential: each token is an event, also a token without text"""
    _, answers = load("kind=synchronous", "--backend", f"kind=openai_http,target={c.URL}")
    times = [a["info"]["timings"] for a in answers]
    equal(len({t["request_iterations"] for t in times}), 1, "events of answers of equal length")
    equal(max(t["token_iterations"] for t in times), OUT, "events with text")


@check
def completions():
    """completions, four concurrent requests"""
    r, answers = load("kind=concurrent,streams=4", "--backend",
                      f"kind=openai_http,target={c.URL},request_format=/v1/completions,model={c.model()}")
    equal({a["input_metrics"]["text_tokens"] for a in answers}, {IN}, "tokens of a prompt")


if __name__ == "__main__":
    sys.exit(c.main("guidellm"))
