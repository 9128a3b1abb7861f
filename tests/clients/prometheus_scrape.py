"""A real Prometheus scrapes /metrics: the values of its HTTP API match what the client measured, and promtool checks the
exposition format.

PHASEPIPE_PROMETHEUS is the folder of the programs. The server under test (PHASEPIPE_METRICS, or PHASEPIPE_URL) must receive no
other requests during the checks."""

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse

import check as c
from check import check, equal, true

FOLDER = c.need(os.environ.get("PHASEPIPE_PROMETHEUS"), "PHASEPIPE_PROMETHEUS: the folder of prometheus and promtool")
SERVER = os.environ.get("PHASEPIPE_METRICS") or c.URL
MODEL = c.get("/v1/models", url=SERVER)["data"][0]["id"]

# Warnings of promtool about vLLM's names.
VLLMS_NAMES = ("metric names should not contain ':'", 'non-counter metrics should not have "_total" suffix')

# The queries of vLLM's Grafana dashboard (examples/online_serving/prometheus_grafana of vLLM), with its intervals.
BOARD = """
histogram_quantile(0.99, sum by(le) (rate(vllm:e2e_request_latency_seconds_bucket{model_name="$M"}[30s])))
histogram_quantile(0.5, sum by(le) (rate(vllm:inter_token_latency_seconds_bucket{model_name="$M"}[30s])))
histogram_quantile(0.9, sum by(le) (rate(vllm:time_to_first_token_seconds_bucket{model_name="$M"}[30s])))
rate(vllm:e2e_request_latency_seconds_sum{model_name="$M"}[30s]) / rate(vllm:e2e_request_latency_seconds_count{model_name="$M"}[30s])
rate(vllm:prompt_tokens_total{model_name="$M"}[30s])
rate(vllm:generation_tokens_total{model_name="$M"}[30s])
vllm:num_requests_running{model_name="$M"}
vllm:num_requests_waiting{model_name="$M"}
vllm:kv_cache_usage_perc{model_name="$M"}
sum by(le) (increase(vllm:request_prompt_tokens_bucket{model_name="$M"}[30s]))
sum by(le) (increase(vllm:request_generation_tokens_bucket{model_name="$M"}[30s]))
sum by(finished_reason) (increase(vllm:request_success_total{model_name="$M"}[30s]))
rate(vllm:request_queue_time_seconds_sum{model_name="$M"}[30s])
rate(vllm:request_prefill_time_seconds_sum{model_name="$M"}[30s])
rate(vllm:request_decode_time_seconds_sum{model_name="$M"}[30s])
""".strip().splitlines()


class Prometheus:
    def __init__(self):
        self.dir = tempfile.TemporaryDirectory(prefix="prometheus.")
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        config = os.path.join(self.dir.name, "prometheus.yml")
        with open(config, "w", encoding="utf-8") as f:
            f.write("global: {scrape_interval: 500ms, scrape_timeout: 400ms}\nscrape_configs:\n- job_name: phasepipe\n"
                    f"  static_configs: [{{targets: ['{urllib.parse.urlsplit(SERVER).netloc}']}}]\n")
        self.log = open(os.path.join(self.dir.name, "log"), "w+", encoding="utf-8")
        self.p = subprocess.Popen([os.path.join(FOLDER, "prometheus"), f"--config.file={config}",
                                   f"--storage.tsdb.path={self.dir.name}/data", f"--web.listen-address=127.0.0.1:{self.port}"],
                                  stdout=self.log, stderr=self.log)
        c.until(self.up, 30, "prometheus has scraped")

    def up(self):
        if self.p.poll() is not None:
            self.log.seek(0)
            raise AssertionError(f"prometheus: exit {self.p.returncode}: {self.log.read()[-500:]}")
        try:
            return self.query("up") == {(): 1.0}
        except (OSError, ValueError):  # it does not listen yet, or its response is no JSON because it is not ready
            return False

    def api(self, path):
        return json.loads(c.http(path, url=f"http://127.0.0.1:{self.port}")[2])["data"]

    def query(self, text):
        """{labels without those of the scrape: value}."""
        out = {}
        for r in self.api("/api/v1/query?query=" + urllib.parse.quote(text))["result"]:
            labels = tuple(sorted((k, v) for k, v in r["metric"].items()
                                  if k not in ("__name__", "instance", "job", "model_name", "engine")))
            out[labels] = float(r["value"][1])
        return out

    def close(self):
        self.p.terminate()
        self.p.wait()
        self.log.close()
        self.dir.cleanup()


def ask(prompt, n, **more):
    return c.post("/v1/completions", {"model": MODEL, "prompt": prompt, "max_tokens": n, "temperature": 0, **more}, url=SERVER)


@check
def scraped():
    """series match what the client measured"""
    p = Prometheus()
    try:
        def settle():  # waits for two scrapes
            time.sleep(1.6)

        def values(*names):
            return {n: sum(p.query(n).values()) for n in names}
        sums = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:prefix_cache_hits_total",
                "vllm:prefix_cache_queries_total", "vllm:time_to_first_token_seconds_count",
                "vllm:inter_token_latency_seconds_count", "vllm:e2e_request_latency_seconds_count",
                "vllm:e2e_request_latency_seconds_sum", "vllm:request_prompt_tokens_sum", "vllm:request_prompt_tokens_count",
                "vllm:request_generation_tokens_sum", "vllm:request_success_total", "vllm:request_params_max_tokens_sum")
        settle()
        before, reasons = values(*sums), p.query("vllm:request_success_total")
        answers, walls, asked = [], 0.0, 0
        shared = "A text that many questions share. " * 20
        for i in range(8):
            n = 10 + i
            begin = time.monotonic()
            answers.append(ask(f"{shared} Question {i}?", n, ignore_eos=True))
            walls += time.monotonic() - begin
            asked += n
        begin = time.monotonic()
        answers.append(ask("1, 2, 3, 4, 5,", 200, stop=[" 9"]))
        walls += time.monotonic() - begin
        asked += 200
        equal(answers[-1]["choices"][0]["finish_reason"], "stop")
        settle()
        after = values(*sums)
        got = {k: after[k] - before[k] for k in sums}
        usage = [a["usage"] for a in answers]
        prompt, out = (sum(u[k] for u in usage) for k in ("prompt_tokens", "completion_tokens"))
        cached = sum((u.get("prompt_tokens_details") or {}).get("cached_tokens", 0) for u in usage)
        true(cached > 0, "nothing was cached")
        want = {"vllm:prompt_tokens_total": prompt, "vllm:generation_tokens_total": out, "vllm:prefix_cache_hits_total": cached,
                "vllm:prefix_cache_queries_total": prompt, "vllm:time_to_first_token_seconds_count": 9,
                "vllm:e2e_request_latency_seconds_count": 9, "vllm:request_prompt_tokens_sum": prompt,
                "vllm:request_prompt_tokens_count": 9, "vllm:request_generation_tokens_sum": out,
                "vllm:request_success_total": 9, "vllm:request_params_max_tokens_sum": asked}
        equal({k: got[k] for k in want}, {k: float(v) for k, v in want.items()})
        true(out - 9 - 20 <= got["vllm:inter_token_latency_seconds_count"] <= out - 9, f"{got} of {out} tokens")
        e2e = got["vllm:e2e_request_latency_seconds_sum"]
        true(0.8 * walls <= e2e <= walls, f"end to end {e2e:.3f} s, the client measured {walls:.3f} s")
        now = p.query("vllm:request_success_total")
        delta = {dict(k)["finished_reason"]: v - reasons.get(k, 0) for k, v in now.items()}
        equal((delta["length"], delta["stop"]), (8.0, 1.0), "finished reasons")
        equal(sum(p.query("sum(vllm:num_requests_running) + sum(vllm:num_requests_waiting)").values()), 0.0)
        return f"{prompt} prompt tokens, {cached} of them cached, {out} generated"
    finally:
        p.close()


@check
def gauges():
    """running rises and falls, aborts are counted, and the dashboard's queries return values"""
    p = Prometheus()
    try:
        aborts = lambda: p.query('vllm:request_success_total{finished_reason="abort"}').get((("finished_reason", "abort"),), 0)
        time.sleep(1.2)
        before, seen = aborts(), 0.0
        t = threading.Thread(target=lambda: ask("Count:", 600, ignore_eos=True))
        t.start()
        while t.is_alive():
            seen = max(seen, *p.query("vllm:num_requests_running").values())
            time.sleep(0.2)
        equal(seen, 1.0, "running")
        r = subprocess.run(["curl", "-s", "--max-time", "1", "-o", "/dev/null", f"{SERVER}/v1/completions", "-H",
                            "Content-Type: application/json", "-d", json.dumps(
                                {"model": MODEL, "prompt": "a", "max_tokens": 6000, "ignore_eos": True})], check=False)
        equal(r.returncode, 28, "curl's status: a time-out")
        time.sleep(2)
        equal(max(p.query("vllm:num_requests_running").values()), 0.0, "running at the end")
        equal(aborts() - before, 1.0, "aborts")
        empty = [q for q in BOARD if not p.query(q.replace("$M", MODEL))]
        true(not empty, f"no answer to {empty}")
        nan = [q for q in BOARD if any(v != v for v in p.query(q.replace("$M", MODEL)).values())]
        true(not nan, f"not a number: {nan}")
        meta = p.api("/api/v1/metadata")
        wrong = [k for k in meta if k.startswith("vllm:") and (meta[k][0]["type"] == "unknown" or not meta[k][0]["help"])]
        true(not wrong and any(k.startswith("phasepipe:") for k in meta), f"without type or help: {wrong}")
        return f"{len(BOARD)} queries, {len(meta)} metrics"
    finally:
        p.close()


@check
def promtool():
    """promtool check metrics warns only about vLLM's names"""
    ask("a", 2)
    text = c.http("/metrics", url=SERVER)
    true(text[1]["Content-Type"].startswith("text/plain; version=0.0.4"), text[1]["Content-Type"])
    run = subprocess.run([os.path.join(FOLDER, "promtool"), "check", "metrics"], input=text[2], text=True,
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    rest = [x for x in run.stdout.splitlines() if x and not x.endswith(VLLMS_NAMES)]
    true(run.returncode in (0, 3) and not rest, f"exit {run.returncode}: {'; '.join(rest)}")
    return f"{len(text[2].splitlines())} lines"


@check
def bounded():
    """unknown models and paths create no series"""
    count = lambda: sum(not x.startswith("#") for x in c.http("/metrics", url=SERVER)[2].splitlines())
    for i in range(3):
        c.http(f"/no/{i}", url=SERVER)
        c.http("/v1/completions", {"model": f"m{i}", "prompt": "a"}, url=SERVER)
    before = count()
    for i in range(300):
        c.http(f"/x{i}", url=SERVER)
        c.http("/v1/completions", {"model": f"mm{i}", "prompt": "a"}, url=SERVER)
    equal(count(), before, "series")


if __name__ == "__main__":
    sys.exit(c.main("prometheus"))
