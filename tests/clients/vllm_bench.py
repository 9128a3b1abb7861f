"""`vllm bench serve`, of the vLLM that scripts/peer-vllm installed: every request succeeds, with the requested number of tokens
and the intended prompt length."""

import json
import os
import subprocess
import sys
import tempfile

import check as c
from check import check, equal, true

HOME = c.need(os.environ.get("PHASEPIPE_VLLM"), "PHASEPIPE_VLLM: scripts/peer-vllm install")
N, IN, OUT = 12, 96, 24


def bench(*options, out=OUT, roles=0):
    """(result with --save-detailed, output). roles: chunks without text before the first token. vLLM's benchmark counts the first
    chunk of a chat as the first token, with any server."""
    with tempfile.TemporaryDirectory() as folder:
        cmd = [os.path.join(HOME, "venv", "bin", "vllm"), "bench", "serve", "--base-url", c.URL, "--tokenizer",
               os.path.join(HOME, "model"), "--dataset-name", "random", "--random-input-len", str(IN),
               "--random-output-len", str(out), "--num-prompts", str(N), "--ignore-eos", "--save-result", "--save-detailed",
               "--result-dir", folder, "--result-filename", "result.json", "--percentile-metrics", "ttft,tpot,itl,e2el",
               *options]
        run = subprocess.run(cmd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300, env={
            **os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR"})
        true(run.returncode == 0, f"exit {run.returncode}: {run.stdout[-800:]}")
        with open(os.path.join(folder, "result.json"), encoding="utf-8") as f:
            r = json.load(f)
    equal((r["completed"], r["failed"], [e for e in r["errors"] if e]), (N, 0, []), "completed, failed, errors")
    equal(r["output_lens"], [out] * N, "tokens of each answer")
    equal(r["total_output_tokens"], N * out)
    equal([len(x) for x in r["itls"]], [out - 1 + roles] * N, "times between tokens")
    true(all(0 < t < 60 for t in r["ttfts"]), r["ttfts"])
    return r, run.stdout


def medians(r):
    return f"TTFT {r['median_ttft_ms']:.0f} ms, TPOT {r['median_tpot_ms']:.1f} ms (medians)"


@check
def completions():
    """--backend openai, at a request rate, without --model: uses data[0].root"""
    r, out = bench("--backend", "openai", "--endpoint", "/v1/completions", "--request-rate", "6", "--seed", "1")
    equal(r["total_input_tokens"], N * IN)
    true("tokenizer mismatch" not in out, "its token counts differ from the server's: " + out[:300])
    return medians(r)


@check
def chat():
    """--backend openai-chat, four concurrent requests"""
    r, _ = bench("--backend", "openai-chat", "--endpoint", "/v1/chat/completions", "--model", c.model(),
                 "--max-concurrency", "4", "--temperature", "0", "--goodput", "ttft:60000", roles=1)
    true(r["request_goodput"] > 0, "goodput")
    return medians(r)


@check
def one_token():
    """answers of one token"""
    return medians(bench("--backend", "openai", "--endpoint", "/v1/completions", "--model", c.model(), out=1)[0])


if __name__ == "__main__":
    sys.exit(c.main("vllm bench serve"))
