"""The ollama package, synchronous and asynchronous. The package's models validate the types of each response."""

import asyncio
import json
import time

import httpx
import ollama

import check as c
from check import check, equal, true

URL = c.need(c.OLLAMA, "PHASEPIPE_OLLAMA")
ME = ollama.Client(host=URL, timeout=120)
MODEL = c.get("/api/tags", url=URL)["models"][0]["name"]
ASK = [{"role": "user", "content": "Name a river in Europe."}]
OPT = {"temperature": 0, "num_predict": 24}
SPANS = ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration")


def whole_nanoseconds(a, wall_s):
    """Durations are present and positive, and their total is at most the time that the client measured."""
    for k in SPANS:
        true(isinstance(a[k], int) and a[k] > 0, f"{k}: {a[k]}")
    true(a["total_duration"] <= wall_s * 1e9 * 1.02, f"total_duration {a['total_duration']} of {wall_s} s")
    true(sum(a[k] for k in SPANS[1:]) <= a["total_duration"] * 1.02, f"parts exceed the total: {[a[k] for k in SPANS]}")


@check
def generate():
    """generate"""
    begin = time.monotonic()
    a = ME.generate(model=MODEL, prompt="Name a colour.", options=OPT)
    whole_nanoseconds(a, time.monotonic() - begin)
    true(a.done and a.response and a.done_reason in ("stop", "length") and a.model, a)
    true(a.eval_count <= 24 and a.prompt_eval_count > 0, a)
    equal(ME.generate(model=MODEL, prompt="Name a colour.", options=OPT).response, a.response, "again")
    raw = ME.generate(model=MODEL, prompt="The capital of France is", raw=True, options=OPT)
    true("Paris" in raw.response and not raw.context, raw)


@check
def generate_stream():
    """generate, streaming: the same text; only the last line has counters"""
    whole = ME.generate(model=MODEL, prompt="Name a colour.", options=OPT)
    begin = time.monotonic()
    lines = list(ME.generate(model=MODEL, prompt="Name a colour.", options=OPT, stream=True))
    wall = time.monotonic() - begin
    equal("".join(x.response for x in lines), whole.response)
    equal([x.done for x in lines], [False] * (len(lines) - 1) + [True])
    true(all(x.eval_count is None and x.created_at for x in lines[:-1]), "counters before the end")
    whole_nanoseconds(lines[-1], wall)
    equal([lines[-1][k] for k in ("eval_count", "prompt_eval_count", "done_reason")],
          [whole[k] for k in ("eval_count", "prompt_eval_count", "done_reason")])


@check
def context():
    """generate: context continues after the answer"""
    a = ME.generate(model=MODEL, prompt="My name is Ada.", options=OPT)
    true(a.context and all(isinstance(i, int) for i in a.context), "no context")
    b = ME.generate(model=MODEL, prompt="What is my name?", context=a.context, options=OPT)
    true(b.prompt_eval_count > a.prompt_eval_count + a.eval_count, "the context is not counted")


@check
def chat():
    """chat, whole and streamed: the same text"""
    a = ME.chat(model=MODEL, messages=ASK, options=OPT)
    equal(a.message.role, "assistant")
    lines = list(ME.chat(model=MODEL, messages=ASK, options=OPT, stream=True))
    equal("".join(x.message.content for x in lines), a.message.content)
    equal({x.message.role for x in lines}, {"assistant"})
    equal((lines[-1].done, lines[-1].done_reason), (True, a.done_reason))
    model = c.model()
    b = c.post("/v1/chat/completions", {"model": model, "messages": ASK, "max_tokens": 24, "temperature": 0})
    equal((b["choices"][0]["message"]["content"], b["usage"]["prompt_tokens"]), (a.message.content, a.prompt_eval_count),
          "content and prompt tokens in the OpenAI API")


@check
def options():
    """options: seed, stop, top_k, num_predict, num_ctx"""
    ask = lambda **o: ME.generate(model=MODEL, prompt="Tell a story.", options={"num_predict": 24, **o})
    equal(ask(seed=5, temperature=1).response, ask(seed=5, temperature=1).response)
    true(ask(seed=5, temperature=1).response != ask(seed=6, temperature=1).response, "another seed")
    equal(ask(temperature=1, top_k=1, seed=1).response, ask(temperature=0).response)
    a = ask(temperature=0).response
    b = ask(temperature=0, stop=[a[9:13]])
    equal((b.response, b.done_reason), (a[:a.index(a[9:13])], "stop"))
    equal(ask(temperature=0, num_predict=3).eval_count, 3)
    ask(temperature=0, num_ctx=2048, num_keep=4, num_batch=64, num_gpu=0, num_thread=2, repeat_last_n=33, typical_p=0.7)


@check
def logprobs():
    """logprobs and top_logprobs"""
    a = ME.chat(model=MODEL, messages=ASK, options=OPT, logprobs=True, top_logprobs=3)
    equal("".join(x.token for x in a.logprobs), a.message.content)
    true(all(x.logprob <= 0 and len(x.top_logprobs) == 3 for x in a.logprobs), a.logprobs)


@check
def cached():
    """prompt_eval_cached_count is separate from prompt_eval_count"""
    prompt = f"{time.time()} " + "A long prompt, once more. " * 60  # no block is cached by an earlier run
    a, b = (httpx.post(URL + "/api/generate", timeout=120, json={
        "model": MODEL, "prompt": prompt, "stream": False, "options": {"num_predict": 1}}).json() for _ in range(2))
    equal(a["prompt_eval_count"], b["prompt_eval_count"])
    true(b["prompt_eval_cached_count"] > 0.8 * b["prompt_eval_count"], b)
    true(a["prompt_eval_cached_count"] < b["prompt_eval_cached_count"], a)


@check
def load():
    """an empty prompt responds load, keep_alive 0 responds unload"""
    a = ME.generate(model=MODEL)
    equal((a.done, a.done_reason, a.response), (True, "load", ""))
    a = ME.generate(model=MODEL, keep_alive=0)
    equal((a.done, a.done_reason), (True, "unload"))
    equal(ME.chat(model=MODEL, messages=[]).done_reason, "load")


@check
def facts():
    """list, show, ps"""
    m = ME.list().models[0]
    true(m.model == MODEL and m.size > 0 and len(m.digest) == 64 and m.modified_at, m)
    true(m.details.format == "gguf" and m.details.family == "llama" and m.details.quantization_level == "Q4_1", m.details)
    s = ME.show(MODEL)
    true("completion" in s.capabilities and s.details.parameter_size and s.modelinfo and s.template, s)
    equal(s.modelinfo["general.architecture"], "llama")
    ME.generate(model=MODEL, prompt="x", options=OPT)
    p = ME.ps().models[0]
    true(p.model == MODEL and p.size > 0 and p.expires_at and p.context_length > 0, p)
    for name in (MODEL.removesuffix(":latest"), MODEL.removesuffix(":latest") + ":latest"):
        true(ME.show(name).details, name)


@check
def errors():
    """errors: ResponseError with the status"""
    def fails(status, call, word=""):
        try:
            call()
        except ollama.ResponseError as e:
            equal(e.status_code, status, f"status of: {e.error}")
            true(word in e.error, f"{word} in: {e.error}")
            return
        raise AssertionError(f"no error {status} {word}")
    for stream in (False, True):
        end = (lambda x: list(x)) if stream else (lambda x: x)
        fails(404, lambda: end(ME.generate(model="no-such", prompt="x", stream=stream)), "no-such")
        fails(404, lambda: end(ME.chat(model="no-such", messages=ASK, stream=stream)), "no-such")
        fails(400, lambda: end(ME.chat(model=MODEL, messages=ASK, options={"temperature": "hot"}, stream=stream)))
        fails(400, lambda: end(ME.generate(model=MODEL, prompt="word " * 20000, stream=stream)))
        fails(400, lambda: end(ME.generate(model=MODEL, prompt="x", format="json", stream=stream)), "format")
    fails(404, lambda: ME.show("no-such"))
    for call in (lambda: ME.embed(model=MODEL, input="x"), lambda: ME.pull("x"), lambda: ME.delete("x")):
        try:
            call()
            raise AssertionError("no error")
        except ollama.ResponseError as e:
            true(400 <= e.status_code <= 501 and e.error, e)
    status, _, text = c.http("/api/generate", b"{not json", url=URL)
    equal((status, list(json.loads(text))), (400, ["error"]))


@check
def leaves():
    """a disconnect in the middle of a stream releases its slot"""
    c.quiet()
    s = ME.generate(model=MODEL, prompt="Tell a long story.", stream=True, raw=True,
                    options={"num_predict": 6000, "temperature": 0})
    for _, _ in zip(s, range(3)):
        pass
    true(c.busy(), "nothing runs")
    s.close()
    return f"after {1000 * c.quiet():.0f} ms"


@check
def asynchronous():
    """AsyncClient: generate, chat, concurrent streams"""
    alone = ME.generate(model=MODEL, prompt="Name a colour.", options=OPT).response

    async def streamed(me):
        text = ""
        async for x in await me.generate(model=MODEL, prompt="Name a colour.", options=OPT, stream=True):
            text += x.response
        return text

    async def f():
        me = ollama.AsyncClient(host=URL)
        equal(set(await asyncio.gather(*(streamed(me) for _ in range(16)))), {alone})
        true((await me.chat(model=MODEL, messages=ASK, options=OPT)).message.content, "no answer")
        equal((await me.list()).models[0].model, MODEL)
        try:
            await me.chat(model="no-such", messages=ASK)
            true(False, "no error")
        except ollama.ResponseError as e:
            equal(e.status_code, 404)
    asyncio.run(f())


@check
def dialects():
    """GET / and HEAD / respond 'Ollama is running'; /api/version and the OpenAI API on the same address"""
    a = httpx.get(URL + "/")
    equal((a.status_code, a.text), (200, "Ollama is running"))
    equal((httpx.head(URL + "/").status_code, httpx.head(URL + "/").content), (200, b""))
    true(c.get("/api/version", url=URL)["version"], "a version")
    true(c.get("/v1/models", url=URL)["data"], "the OpenAI API")


if __name__ == "__main__":
    raise SystemExit(c.main("ollama"))
