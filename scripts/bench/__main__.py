"""Speed and right values compared with peers and with the limits of this machine, measured in turns in one run.

    scripts/bench/run [-m MODEL] [--threads N] [--rounds 3] [--only SECTION,…] [--clean] [--json FILE]

Programs that are missing or out of date are built first. Each line of output is a figure, with its goal and whether it is met.
A case runs in rounds: a probe of the machine, ours, the probe again, a peer; the figure is the median of the ratios of the
rounds. Prefill counts the multiply-adds of the linear layers (the head once a prompt) against the peak of their arithmetic;
decode counts weights as packed and KV once a step against a plain read of as many bytes. Ours runs with its default KV (int8),
llama.cpp with its default (f16).

Peers: llama.cpp's programs come from LLAMA_DIR or PATH, vLLM from scripts/peer-vllm install; if one is missing, our side is
printed alone. Models that are made (other types by llama-quantize, random ones in the shape of Llama 3.2 1B) stay in the cache
folder unless --clean is given. Standard library only; the section `quality` needs what check-peers needs.

Sections:"""

import os
import sys

sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # in place of this folder: it is the package bench

import argparse  # noqa: E402
import json  # noqa: E402
import subprocess  # noqa: E402
import time  # noqa: E402

from bench import engine, interference, kvstore, over_http, peer, pipeline, policies, prefix, quality, scheduler  # noqa: E402
from bench.figures import Bench, progress  # noqa: E402
from bench.models import default_model  # noqa: E402
from bench.programs import SCRIPTS, Failed, last_json, tool  # noqa: E402

SECTIONS = {
    "prefill": ("prompts of 128 to 2,048 tokens", (engine.prefill,)),
    "types": ("the model in other weight types", (engine.types,)),
    "shape": ("a 1B shape of random weights, long prompts", (engine.shape,)),
    "decode": ("steps at depth 64 and 2,048, 1 to 16 sequences", (engine.decode,)),
    "kv": ("int8 KV against f16 KV: speed, bytes, perplexity", (engine.kv_speed, quality.kv_quality)),
    "attention": ("attention of a long prompt", (engine.attention,)),
    "start": ("from start to the first token", (pipeline.start,)),
    "memory": ("weights once a host", (pipeline.memory,)),
    "busy": ("decode beside a busy process", (engine.busy,)),
    "pipe": ("KV into decode", (pipeline.transfer,)),
    "handover": ("a prefilled request handed over by kvstore", (kvstore.handover,)),
    "prefix": ("prompts whose beginning is cached, through the services", (prefix.cached_prefix,)),
    "sched": ("decisions of the scheduler, as a filter and as a service", (scheduler.sched,)),
    "policies": ("goodput by policy, in virtual time and with real processes", (policies.simulated, policies.real)),
    "turning": ("load that turns from prompts to decode, in virtual time", (policies.turning,)),
    "interference": ("streams while a long prompt is read", (interference.interference,)),
    "quality": ("KL from the float32 reference", (quality.quality,)),
    "sse": ("1,000 event streams of a fake engine: CPU an event, delays", (over_http.sse,)),
    "requests": ("answers of one token over HTTP, 32 at once", (over_http.requests,)),
    "edge": ("TTFT that HTTP adds to the pipe", (over_http.edge,)),
    "rates": ("whole servers at rising rates: split, colocated, llama.cpp, vLLM", (over_http.rates,)),
}


def arguments():
    listing = "\n".join(f"    {k:10} {v[0]}" for k, v in SECTIONS.items())
    ap = argparse.ArgumentParser(prog="scripts/bench/run", description=f"{__doc__}\n{listing}", formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("-m", "--model", default=default_model())
    ap.add_argument("--threads", type=int, default=min(2, len(os.sched_getaffinity(0))))
    ap.add_argument("--rounds", type=int, default=3)
    ap.add_argument("--only", default=",".join(SECTIONS), help="sections, separated by commas")
    ap.add_argument("--windows", type=int, default=4, help="windows of 512 ids of the section quality")
    ap.add_argument("--text", action="append", help="a text for the perplexity of KV types; may be repeated")
    ap.add_argument("--clean", action="store_true", help="remove models that were made, and their packed copies, after use")
    ap.add_argument("--json", help="all figures, with their rounds, as JSON into this file")
    args = ap.parse_args()
    args.only = args.only.split(",")
    for name in args.only:
        if name not in SECTIONS:
            ap.error(f"--only {name}: one of {' '.join(SECTIONS)}")
    if args.rounds < 1 or args.threads < 1 or args.windows < 1:
        ap.error("--rounds, --threads and --windows are at least 1")
    return args


def build():
    """Builds the programs and tools in the folder B, or fails. A make above must not lend this one its flags."""
    env = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    if subprocess.run([os.path.join(SCRIPTS, "build"), "all", "tools"], env=env, stdout=sys.stderr).returncode != 0:
        raise SystemExit("scripts/bench: the build failed")


BROKEN = (Failed, subprocess.SubprocessError, StopIteration, LookupError, OSError, ValueError)


def head(b):
    """Prints the machine and the peers; returns the probe's figures."""
    n = b.a.threads
    p = last_json([tool("probe"), "-t", str(n), "90", "1000"])
    both = lambda v: f"{v[0]:.0f} / {v[-1]:.0f}"
    kinds = ((f"int8 ({p['int8']})", "int8_gmacs"), ("bf16", "bf16_gmacs"), ("float32", "f32_gmacs"))
    products = ", ".join(f"{name} {both(p[key])}" for name, key in kinds if key in p)
    reads = ", ".join(f"{r['mb']} MB {both([x[0] for x in r['median_best_gb_s']])}" for r in p["reads"])
    print(f"{p['cpu']}, load {os.getloadavg()[0]:.1f}; probed with 1 / {n} threads: GMAC/s {products}; "
          f"plain reads, GB/s {reads}")
    peers = [b.no_llama or f"with {peer.version()}", b.no_vllm or "with vLLM"]
    print(f"model {os.path.basename(b.a.model)}, {n} threads unless a line names another number, medians of {b.a.rounds} rounds; "
          f"{'; '.join(peers)}", flush=True)
    return p


def main():
    args = arguments()
    if not os.path.isfile(args.model):
        raise SystemExit(f"scripts/bench: {args.model}: no such file; scripts/get-model fetches the default model")
    build()
    b = Bench(args)
    b.is_default = os.path.abspath(args.model) == os.path.abspath(default_model())
    machine, failed = None, 0
    try:
        machine = head(b)
        for name in args.only:
            b.section = name
            begin = time.monotonic()
            for run in SECTIONS[name][1]:
                try:
                    run(b)
                except BROKEN as e:  # the other sections still run
                    failed += 1
                    b.note(f"{name}: {type(e).__name__ + ': ' if not isinstance(e, Failed) else ''}{e}")
            b.items.append({"section": name, "seconds": time.monotonic() - begin})
    finally:
        b.close()
        progress("")
        if args.json:
            with open(args.json, "w", encoding="utf-8") as f:
                json.dump({"machine": machine, "figures": b.items}, f, indent=1)
    goals = [i for i in b.items if i.get("goal") is not None]
    took = sum(i.get("seconds", 0) for i in b.items)
    print(f"scripts/bench: {sum(i['met'] for i in goals)} of {len(goals)} goals met, {failed} sections failed, "
          f"{took / 60:.0f} minutes")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
