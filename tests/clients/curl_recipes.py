"""Common curl commands: those of the README, with the address of the server under test, and recipes for vLLM and Ollama.
Needs the standard library, curl and jq."""

import json
import os
import re
import subprocess
import sys
import tempfile
import time

import check as c
from check import check, equal, true

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
MODEL = c.model()


def shell(text, timeout=60):
    """Output of a shell command, which must succeed. $URL, $OLLAMA and $MODEL are set."""
    run = subprocess.run(["bash", "-o", "pipefail", "-c", text], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                         timeout=timeout, env={**os.environ, "URL": c.URL, "OLLAMA": c.OLLAMA, "MODEL": MODEL})
    true(run.returncode == 0, f"{text}: exit {run.returncode}: {run.stderr[-300:]} {run.stdout[-300:]}")
    return run.stdout


def commands(text):
    """The curl commands of the README's code blocks; continuation lines are joined."""
    found = []
    for block in re.findall(r"^```(?:console|sh|bash)\n(.*?)^```", text, re.M | re.S):
        lines = iter(x for x in block.splitlines() if not x.startswith("#"))
        for line in lines:
            command = line.removeprefix("$ ")
            while command.endswith("\\") or command.endswith("|") or command.count("'") % 2:
                more = next(lines, None)
                if more is None:
                    break
                command += "\n" + more.removeprefix("> ")
            if re.search(r"\bcurl\b.*(:8000|:11434|localhost)", command):
                found.append(command)
    return found


COUNTERS = ("prompt_eval_count", "prompt_eval_cached_count", "prompt_eval_duration", "eval_count", "eval_duration",
            "total_duration")


def a_chat(out, **_):
    a = json.loads(out)
    true(a["choices"][0]["message"]["content"].strip(), out)
    true(0 < a["usage"]["completion_tokens"] <= 16 and a["usage"]["prompt_tokens"] > 3, a["usage"])


def a_time(out, wall, body):
    """seconds to the first byte; the body is a complete event stream"""
    true(re.fullmatch(r"\d+\.\d+\n", out) and 0 < float(out) < wall, f"{out!r} of {wall} s")
    lines = [x for x in body.split("\n") if x]
    true(len(lines) > 2 and all(x.startswith("data: ") for x in lines) and lines[-1] == "data: [DONE]", body)
    true("".join(json.loads(x[6:])["choices"][0]["text"] for x in lines[:-1]).strip(), body)


def counters(out, wall, **_):
    a = json.loads(out)
    equal(tuple(a), COUNTERS)
    true(all(type(x) is int for x in a.values()), a)
    true(a["eval_count"] > 0 and 0 <= a["prompt_eval_cached_count"] <= a["prompt_eval_count"] and a["prompt_eval_count"] > 5, a)
    parts = a["prompt_eval_duration"], a["eval_duration"]
    true(min(parts) > 0 and sum(parts) <= a["total_duration"] <= wall * 1e9, a)
    true(a["total_duration"] > 1e6, f"not in nanoseconds: {a}")


def histogram(out, **_):
    """lines of one histogram that counted at least one observation"""
    rows = [re.fullmatch(r"(vllm:time_to_first_token_seconds)_(bucket|sum|count)\{(.*)\} (\S+)", x) for x in out.splitlines()]
    true(rows and all(rows), out)
    of = {kind: [float(x[4]) for x in rows if x[2] == kind] for kind in ("bucket", "sum", "count")}
    true(len(of["bucket"]) > 10 and of["bucket"] == sorted(of["bucket"]), of["bucket"])
    true(len(of["count"]) == len(of["sum"]) == 1 and of["sum"][0] > 0, of)
    true(of["count"][0] == of["bucket"][-1] > 0, of)


JUDGES = {"/v1/chat/completions": a_chat, "/v1/completions": a_time, "/api/generate": counters, "/metrics": histogram}


@check
def readme():
    """the README's own commands"""
    with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as f:
        text = f.read()
    found, name = commands(text), re.search(r"--served-model-name (\w+)", text)
    true(len(found) >= len(JUDGES) and name, f"the README has {len(found)}")
    for command in found:
        here = command
        if not os.environ.get("PHASEPIPE_AS_WRITTEN"):
            here = re.sub(r"(?:http://)?(?:localhost|127\.0\.0\.1):8000", c.URL, here)
            here = re.sub(r"(?:http://)?(?:localhost|127\.0\.0\.1):11434", c.OLLAMA, here)
            here = here.replace(f'"{name[1]}"', json.dumps(MODEL))
        path = re.search(r":\d+(/[\w/]+)", here)[1]
        true(path in JUDGES, f"{command}: no judge for its output (JUDGES)")
        with tempfile.NamedTemporaryFile("r", encoding="utf-8") as body:
            begin = time.monotonic()
            out = shell(here.replace("-o /dev/null", f"-o {body.name}"), 200)
            try:
                JUDGES[path](out, wall=time.monotonic() - begin, body=body.read())
            except (AssertionError, KeyError, IndexError, TypeError, ValueError) as e:
                raise AssertionError(f"{command}: {e!r} of {out[-300:]!r}") from None
    return f"{len(found)} commands"


@check
def first_byte():
    """time to the first byte: a stream sends its first byte long before its last"""
    body = json.dumps({"model": MODEL, "prompt": "Count:", "max_tokens": 300, "temperature": 0, "stream": True,
                       "ignore_eos": True})
    out = shell(f"curl -sfN -o /dev/null -w '%{{time_starttransfer}} %{{time_total}} %{{http_code}}\\n' $URL/v1/completions "
                f"-H 'Content-Type: application/json' -d '{body}'").split()
    first, last = float(out[0]), float(out[1])
    equal(out[2], "200")
    true(first < last / 2, f"first byte after {first} s of {last} s")
    return f"{1000 * first:.0f} ms of {1000 * last:.0f} ms"


@check
def vllm_recipes():
    """recipes written for vLLM"""
    true(MODEL in shell("curl -sf $URL/v1/models | jq -r '.data[].id'"), "models")
    equal(json.loads(shell("""curl -sf $URL/v1/completions -H "Content-Type: application/json" -d '{
        "model": "'$MODEL'", "prompt": "San Francisco is a", "max_tokens": 7, "temperature": 0}'"""))["usage"]["completion_tokens"],
          7)
    true(json.loads(shell("""curl -sf $URL/v1/chat/completions -H "Content-Type: application/json" -d '{
        "model": "'$MODEL'", "messages": [{"role": "system", "content": "You are a helpful assistant."},
        {"role": "user", "content": "Who won the world series in 2020?"}], "temperature": 0}'"""))["choices"][0]["message"]["content"], "chat")
    equal(shell("curl -sf -o /dev/null -w '%{http_code}' $URL/health"), "200")
    true(json.loads(shell("curl -sf $URL/version"))["version"], "version")
    equal(shell("""curl -s -o /dev/null -w '%{http_code}' $URL/v1/completions -H 'Content-Type: application/json' -d '{"'"""), "400")


@check
def default_type():
    """curl -d without a content type is accepted, or rejected with an error that names the header"""
    out = shell("""curl -s -w '\\n%{http_code}' $URL/v1/completions -d '{"prompt": "a", "max_tokens": 1}'""").rsplit("\n", 1)
    true(out[1] in ("200", "400", "415"), out)
    true(out[1] == "200" or "content" in json.loads(out[0])["error"]["message"].lower(), out)
    return out[1]


@check
def events():
    """stream format: `data: ` lines, blank lines, [DONE]"""
    out = shell("""curl -sfN $URL/v1/chat/completions -H 'Content-Type: application/json' -d '{"model": "'$MODEL'",
        "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8, "stream": true}'""")
    parts = out.split("\n\n")
    true(all(p.startswith("data: ") and "\n" not in p for p in parts[:-1]) and parts[-1] == "", out)
    equal(parts[-2], "data: [DONE]")
    for p in parts[:-2]:
        json.loads(p[6:])


@check
def ollama_counters():
    """Ollama's counters, read with jq"""
    c.need(c.OLLAMA, "the Ollama API")
    name = shell("curl -sf $OLLAMA/api/tags | jq -r '.models[0].name'").strip()
    begin = time.monotonic()
    rate = shell(f"""curl -sf $OLLAMA/api/generate -d '{{"model": "{name}", "prompt": "Why is the sky blue?", "stream": false,
        "options": {{"num_predict": 64, "temperature": 0}}}}' |
        jq '[.eval_count / .eval_duration * 1e9, .prompt_eval_count, .total_duration]'""")
    wall = time.monotonic() - begin
    rate, prompt, total = json.loads(rate)
    true(1 < rate < 1e5 and prompt > 5 and 0 < total < wall * 1e9, (rate, prompt, total))
    lines = shell(f"""curl -sfN $OLLAMA/api/chat -d '{{"model": "{name}", "messages": [{{"role": "user", "content": "Hi"}}],
        "options": {{"num_predict": 8}}}}' | jq -c '[.done, .eval_count]'""").split()
    true(len(lines) > 1 and set(lines[:-1]) == {"[false,null]"} and lines[-1].startswith("[true,"), lines)
    return f"{rate:.0f} tokens/s"


@check
def ollama_options():
    """the request with options in Ollama's documentation, unchanged"""
    c.need(c.OLLAMA, "the Ollama API")
    options = {"num_keep": 5, "seed": 42, "num_predict": 100, "top_k": 20, "top_p": 0.9, "min_p": 0.0, "typical_p": 0.7,
               "repeat_last_n": 33, "temperature": 0.8, "repeat_penalty": 1.2, "presence_penalty": 1.5, "frequency_penalty": 1.0,
               "penalize_newline": True, "stop": ["\n", "user:"], "numa": False, "num_ctx": 1024, "num_batch": 2, "num_gpu": 1,
               "main_gpu": 0, "use_mmap": True, "num_thread": 8}
    body = json.dumps({"model": MODEL, "prompt": "Why is the sky blue?", "stream": False, "options": options})
    out, status = shell(f"curl -s -w '\\n%{{http_code}}' $OLLAMA/api/generate -d '{body}'").rsplit("\n", 1)
    equal(status, "200", out)
    true(json.loads(out)["done"], out)


@check
def metrics():
    """grep on /metrics"""
    before = float(shell("curl -sf $URL/metrics | grep '^vllm:generation_tokens_total' | awk '{print $2}'"))
    shell("""curl -sf $URL/v1/completions -H 'Content-Type: application/json' -d '{"model": "'$MODEL'", "prompt": "a",
        "max_tokens": 9, "ignore_eos": true}'""")
    after = float(shell("curl -sf $URL/metrics | grep '^vllm:generation_tokens_total' | awk '{print $2}'"))
    equal(after - before, 9.0)
    true(shell("curl -sf $URL/metrics | grep -E 'vllm:(num_requests_(running|waiting)|kv_cache_usage_perc)[{ ]'"), "gauges")


@check
def ways():
    """HTTP/1.0, HEAD, Expect: 100-continue, chunked bodies, one connection for several requests"""
    equal(shell("curl -sf -0 -o /dev/null -w '%{http_code}' $URL/v1/models"), "200")
    equal(shell("curl -sfI -o /dev/null -w '%{http_code} %{size_download}' $URL/health"), "200 0")
    body = """{"model": "'$MODEL'", "prompt": "a", "max_tokens": 1}"""
    for option in ("-H 'Expect: 100-continue'", "-H 'Transfer-Encoding: chunked'", "--http1.0",
                   "-H 'Content-Type: application/json; charset=utf-8'"):
        header = "" if "Content-Type" in option else "-H 'Content-Type: application/json'"
        equal(shell(f"curl -sf -o /dev/null -w '%{{http_code}}' {option} {header} -d '{body}' $URL/v1/completions"), "200", option)
    out = shell("curl -sf -o /dev/null -o /dev/null -o /dev/null -w '%{num_connects}' $URL/health $URL/health $URL/health")
    equal(out, "100", "new connections of three requests")
    out = shell("curl -sf -0N $URL/v1/completions -H 'Content-Type: application/json' -d "
                """'{"model": "'$MODEL'", "prompt": "a", "max_tokens": 3, "stream": true}'""")
    true("data: [DONE]" in out and "\r\n" not in out, f"a stream over HTTP/1.0: {out}")


@check
def leaves():
    """a disconnect of curl in the middle of a response (--max-time) releases its slot"""
    c.quiet()
    shell("""! curl -s --max-time 1 -o /dev/null $URL/v1/completions -H 'Content-Type: application/json' -d '{"model": "'$MODEL'",
        "prompt": "a", "max_tokens": 6000, "ignore_eos": true}'""")
    return f"after {1000 * c.quiet():.0f} ms"


if __name__ == "__main__":
    sys.exit(c.main("curl"))
