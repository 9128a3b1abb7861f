"""Section about the scheduler: decisions a second as a filter, and as a service whose workers take no time."""

import os
import statistics
import subprocess
import tempfile
import time

import pipe
from .programs import Failed, Lines, tool, wait_until

WORKERS = 64
QUEUED = 1000
FILTER_GOAL = 200e3
SERVICE_GOAL = 5e3
LATENCY_MS = 2
LOAD = "gen:n=20000,rate=1500,prompt=1000,out=20"  # more than the cluster can take, so that requests wait


def filter_rate(b, folder):
    """Every frame that the filter writes is a decision, except hello and bye. A simulated cluster records its input once."""
    load = os.path.join(folder, "load")
    half = str(WORKERS // 2)
    subprocess.run([pipe.program("simulate"), "-P", half, "-D", half, "--record", load, LOAD], stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL, check=True)
    frames = os.path.join(folder, "decisions")
    with open(load, "rb") as i, open(frames, "wb") as o:
        subprocess.run([pipe.program("sched")], stdin=i, stdout=o, check=True)
    with open(frames, "rb") as i:
        listing = subprocess.run([pipe.program("frames")], stdin=i, stdout=subprocess.PIPE, check=True).stdout
    n = listing.count(b"\n") - 2
    rates = []
    for _ in range(max(5, b.a.rounds)):
        with open(load, "rb") as i:
            begin = time.perf_counter()
            subprocess.run([pipe.program("sched")], stdin=i, stdout=subprocess.DEVNULL, check=True)
            rates.append(n / (time.perf_counter() - begin))
    b.figure(f"sched as a filter: 1,000 decisions a second, {WORKERS} workers", statistics.median(rates) / 1e3,
             FILTER_GOAL / 1e3, detail=f"{n} decisions; rounds {' '.join(f'{r / 1e3:.0f}' for r in rates)}", show="{:.0f}")


def service(b, folder):
    url = f"ipc://{folder}/s"
    p = subprocess.Popen([pipe.program("sched"), "--listen", url], stdin=subprocess.DEVNULL)
    driver = None
    try:
        wait_until(lambda: os.path.exists(f"{folder}/s") or p.poll() is not None, 10)
        driver = Lines([tool("bench_sched"), url])
        full = [driver.ask(f"workers {WORKERS} seqs 4 queued {QUEUED} rate 0 hold 0 seconds 3") for _ in range(b.a.rounds)]
        half = [driver.ask(f"workers {WORKERS} seqs 16 queued 0 rate {SERVICE_GOAL / 2:.0f} hold 5 seconds 3")
                for _ in range(b.a.rounds)]
    finally:
        if driver:
            driver.close()
        p.kill()
        p.wait()
    if any(r["refused"] for r in full + half):
        raise Failed("requests were refused")
    b.figure(f"sched as a service: orders a second, {WORKERS} workers, {QUEUED:,} queued",
             statistics.median(r["orders_s"] for r in full), SERVICE_GOAL, show="{:.0f}")
    b.figure(f"sched as a service: ms from request to order, p99, {SERVICE_GOAL / 2:.0f} a second",
             statistics.median(r["p99_ms"] for r in half), LATENCY_MS, most=True,
             detail="p50 " + " ".join(f"{r['p50_ms']:.2f}" for r in half))


def sched(b):
    with tempfile.TemporaryDirectory(prefix="bench.") as folder:
        filter_rate(b, folder)
        service(b, folder)
