"""`vllm bench serve`, of the vLLM that scripts/peer-vllm installed: every request successful, as many tokens as were asked
for, the prompts as long as it meant them to be."""

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
    """Its result with --save-detailed, and what it printed. roles: chunks without text before the first token; it takes the
    first of all for the first token, of any server's chat."""
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


def said(r):
    return f"TTFT {r['median_ttft_ms']:.0f} ms, TPOT {r['median_tpot_ms']:.1f} ms (medians)"


@check
def completions():
    """--backend openai, at a rate, without --model: it takes data[0].root"""
    r, out = bench("--backend", "openai", "--endpoint", "/v1/completions", "--request-rate", "6", "--seed", "1")
    equal(r["total_input_tokens"], N * IN)
    true("tokenizer mismatch" not in out, "it sees other tokens than the server: " + out[:300])
    return said(r)


@check
def chat():
    """--backend openai-chat, four at once"""
    r, _ = bench("--backend", "openai-chat", "--endpoint", "/v1/chat/completions", "--model", c.model(),
                 "--max-concurrency", "4", "--temperature", "0", "--goodput", "ttft:60000", roles=1)
    true(r["request_goodput"] > 0, "goodput")
    return said(r)


@check
def one_token():
    """answers of one token"""
    return said(bench("--backend", "openai", "--endpoint", "/v1/completions", "--model", c.model(), out=1)[0])


if __name__ == "__main__":
    sys.exit(c.main("vllm bench serve"))
