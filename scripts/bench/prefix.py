"""Section about prompts with a cached prefix, through the services."""

import json
import os
import random
import statistics
import time

import pipe
from .programs import Failed, Lines, Up

PREFIX = 2000  # tokens, about: words of the language are mostly one
PAIRS = 7
WORDS = ("the time of a long way through water and land where people work with light under trees near old stone houses "
         "some days after rain while children read small books about birds that fly over green fields into evening").split()


def prefix(rnd):
    return " ".join(rnd.choice(WORDS) for _ in range(PREFIX))


def question(rnd):
    return " Here are the last words: " + " ".join(rnd.choice(WORDS) for _ in range(14))


def ask(client, text):
    """TTFT as the services report it and as the client measures it, with an answer of one token; in ms."""
    begin = time.monotonic()
    a = client.ask(json.dumps({"prompt": text, "max_tokens": 1, "temperature": 0, "ignore_eos": True}))
    took = 1e3 * (time.monotonic() - begin)
    if a.get("error"):
        raise Failed(f"stream: {a['error']}")
    u = a["usage"]
    return {"ttft": a["timings"]["ttft_ns"] / 1e6, "client": took, "prompt": u["prompt_tokens"],
            "cached": u["cached_tokens"]}


def pair(client, rnd):
    """The same prefix twice, each time with another end: cold, then warm."""
    text = prefix(rnd)
    cold, warm = (ask(client, text + question(rnd)) for _ in range(2))
    if cold["cached"] > 64 or warm["prompt"] - warm["cached"] > 64:
        raise Failed(f"of {cold['prompt']} tokens {cold['cached']} were cached, then {warm['cached']}")
    return cold, warm


def cached_prefix(b):
    rnd = random.Random(os.urandom(8))
    with Up(b.a.model, ["--kv-cache-memory-bytes", "512M"]) as s, \
            Lines([pipe.program("stream"), "--run", s.run, "--jsonl"]) as client:
        pair(client, rnd)
        got = b.rounds("pairs", lambda: pair(client, rnd), max(PAIRS, b.a.rounds))
    median = statistics.median
    for key, what in (("ttft", "TTFT"), ("client", "a client sees")):
        b.figure(f"{PREFIX:,} tokens of prefix cached: {what} against cold", median(w[key] / c[key] for c, w in got), 0.05,
                 most=True, show="{:.1%}", detail=f"{median(w[key] for _, w in got):.1f} and "
                 f"{median(c[key] for c, _ in got):.0f} ms; {median(w['prompt'] - w['cached'] for _, w in got)} of "
                 f"{median(w['prompt'] for _, w in got)} tokens new", rounds=got)
