"""lm-eval's local-completions on local tasks (tests/clients/lm_eval). Compares its log-likelihoods with those that transformers
computes in float32 from the weights of the same file.

Tolerance: phasepipe computes with 8-bit activations and int8 KV. On these 48 requests its log-likelihood per token differs from
float32 by 0.126 on average and 0.49 at most (with f16 KV 0.108 and 0.31). llama.cpp (b11434, f16 KV, also 8-bit activations)
differs by 0.115 and 0.49. Short and unlikely answers differ more than running text. The limits are 0.15 on average, 0.75 at most,
2 % of perplexity, and the same best choice if the reference's margin is above 0.5."""

import glob
import json
import math
import os
import subprocess
import sys
import tempfile

import check as c
from check import check, equal, true

ROOT = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
TOKENIZER = c.need(os.environ.get("PHASEPIPE_VLLM"), "PHASEPIPE_VLLM: a folder with a tokenizer") + "/model"
GGUF = c.need(os.environ.get("PHASEPIPE_MODEL"), "PHASEPIPE_MODEL: the model file of the server")
MEAN, WORST, PPL, MARGIN = 0.15, 0.75, 0.02, 0.5
_REF = []


def evaluate(task, *more, batch=1):
    """(results, samples) of a task; more: additional model arguments."""
    args = [f"model={c.model()}", f"base_url={c.URL}/v1/completions", "max_length=2048", "timeout=120", *more]
    with tempfile.TemporaryDirectory() as folder:
        cmd = [os.path.join(os.path.dirname(sys.executable), "lm_eval"), "run", "--model", "local-completions",
               "--model_args", ",".join(args), "--tasks", task, "--include_path", os.path.join("tests", "clients", "lm_eval"),
               "--batch_size", str(batch), "--log_samples", "--output_path", folder]
        run = subprocess.run(cmd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600, cwd=ROOT,
                             env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": os.path.join(folder, "cache"),
                                  "TOKENIZERS_PARALLELISM": "false"})
        true(run.returncode == 0, f"exit {run.returncode}: {run.stdout[-800:]}")
        read = lambda pattern: open(glob.glob(os.path.join(folder, "**", pattern), recursive=True)[0], encoding="utf-8")
        with read("results_*.json") as f:
            results = json.load(f)["results"][task]
        with read("samples_*.jsonl") as f:
            samples = sorted((json.loads(line) for line in f), key=lambda s: s["doc_id"])
    return results, samples


def reference():
    """(model in float32, tokenizer), both of transformers; loaded once."""
    if not _REF:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer
        torch.set_num_threads(len(os.sched_getaffinity(0)))
        folder, name = os.path.split(GGUF)
        _REF.extend([AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32),
                     AutoTokenizer.from_pretrained(TOKENIZER)])
    return _REF


def log_probs(ids, first):
    """[(log-probability, whether it is the best token)] of each id from `first` on."""
    import torch
    m, _ = reference()
    with torch.no_grad():
        lp = torch.log_softmax(m(torch.tensor([ids])).logits[0].double(), -1)
    return [(lp[i - 1, ids[i]].item(), lp[i - 1].argmax().item() == ids[i]) for i in range(first, len(ids))]


def requests(samples):
    """(document, context, continuation, log-likelihood, is greedy) of each request of a multiple-choice task."""
    for s in samples:
        for k, (lp, greedy) in enumerate(r[0] if isinstance(r[0], list) else r for r in s["resps"]):
            a = s["arguments"][f"gen_args_{k}"]
            yield s["doc_id"], a["arg_0"], a["arg_1"], float(lp), str(greedy) == "True"


@check
def choices():
    """multiple choice: log-likelihoods match float32 within tolerance; ids sent in batches"""
    results, samples = evaluate("phasepipe_facts", f"tokenizer={TOKENIZER}", "tokenizer_backend=huggingface",
                                "tokenized_requests=True", "num_concurrent=1", batch=8)
    _, tok = reference()
    diffs, by_doc, same_greedy, n = [], {}, 0, 0
    for doc, context, text, got, greedy in requests(samples):
        ids, first = tok.encode(context + text), len(tok.encode(context))
        ref = log_probs(ids, first)
        want = sum(x for x, _ in ref)
        diffs.append(abs(got - want) / len(ref))
        by_doc.setdefault(doc, []).append((got, want))
        same_greedy += greedy == all(b for _, b in ref)
        n += 1
    mean = sum(diffs) / n
    true(mean <= MEAN and max(diffs) <= WORST, f"differs by {mean:.3f} per token on average, {max(diffs):.3f} at most")
    for doc, pairs in by_doc.items():
        want = sorted((w for _, w in pairs), reverse=True)
        if want[0] - want[1] > MARGIN:
            equal(max(range(4), key=lambda k: pairs[k][0]), max(range(4), key=lambda k: pairs[k][1]), f"choice of {doc}")
    true(same_greedy >= n - 1, f"is_greedy differs in {n - same_greedy} of {n}")
    return f"{n} requests, {mean:.4f} per token on average, {max(diffs):.3f} at most; accuracy {results['acc,none']:.2f}"


@check
def texts():
    """whole texts: perplexity matches float32 within tolerance; concurrent requests"""
    _, samples = evaluate("phasepipe_texts", f"tokenizer={TOKENIZER}", "tokenizer_backend=huggingface", "num_concurrent=4",
                          "tokenized_requests=True")
    _, tok = reference()
    got, want, n = 0.0, 0.0, 0
    for s in samples:
        r = s["resps"][0]
        got += float(r[0] if isinstance(r, list) else r)
        ids = [tok.bos_token_id] + tok.encode(s["doc"]["text"])  # lm-eval adds the BOS token
        ref = log_probs(ids, 1)
        want += sum(x for x, _ in ref)
        n += len(ref)
    ratio = math.exp((want - got) / n)
    true(abs(ratio - 1) <= PPL, f"perplexity {math.exp(-got / n):.3f}, float32 {math.exp(-want / n):.3f}")
    return f"{n} tokens, perplexity {math.exp(-got / n):.3f}, float32 {math.exp(-want / n):.3f}"


@check
def remote():
    """the server's tokenizer (tokenizer_backend=remote) gives the same log-likelihoods"""
    here = {k[:3]: k[3] for k in requests(evaluate(
        "phasepipe_facts", f"tokenizer={TOKENIZER}", "tokenizer_backend=huggingface", "tokenized_requests=True")[1])}
    there = {k[:3]: k[3] for k in requests(evaluate(
        "phasepipe_facts", "tokenizer_backend=remote", "tokenized_requests=True")[1])}
    equal(there, here)


@check
def until():
    """generate_until: greedy answers end before the stop text"""
    _, samples = evaluate("phasepipe_goes_on", f"tokenizer={TOKENIZER}", "tokenizer_backend=huggingface",
                          "tokenized_requests=False", "num_concurrent=4")
    texts_ = [s["resps"][0][0] if isinstance(s["resps"][0], list) else s["resps"][0] for s in samples]
    true(not any("\n" in t for t in texts_) and sum(map(bool, texts_)) > len(texts_) / 3, texts_)
    return f"{sum(s['doc']['choices'][s['doc']['answer']] in t for s, t in zip(samples, texts_))} of {len(texts_)} right"


if __name__ == "__main__":
    sys.exit(c.main("lm-eval"))
