"""The openai package, asynchronous: concurrent requests and streams, cancelled tasks."""

import asyncio
import time

import openai

import check as c
from check import check, equal, true

MODEL = c.model()
PROMPTS = [f"{i} is a number. The next number is" for i in range(16)]


def me(**more):
    return openai.AsyncOpenAI(base_url=c.URL + "/v1", api_key="none", max_retries=0, timeout=120, **more)


async def text_of(client, prompt, n=24, **more):
    a = await client.completions.create(model=MODEL, prompt=prompt, max_tokens=n, temperature=0, **more)
    return a.choices[0].text


async def text_of_stream(client, prompt, n=24, **more):
    parts = []
    async for x in await client.completions.create(model=MODEL, prompt=prompt, max_tokens=n, temperature=0, stream=True, **more):
        parts += [y.text for y in x.choices]
    return "".join(parts)


def run(f):
    async def inside():
        async with me() as client:
            return await f(client)
    return asyncio.run(inside())


@check
def together():
    """16 concurrent requests, whole and streamed: each text is the same as alone"""
    async def f(client):
        alone = [await text_of(client, p) for p in PROMPTS]
        equal(await asyncio.gather(*(text_of(client, p) for p in PROMPTS)), alone)
        equal(await asyncio.gather(*(text_of_stream(client, p) for p in PROMPTS)), alone, "streamed")
        true(len(set(alone)) > 1, "all answers are the same")
    run(f)


@check
def many_streams():
    """100 concurrent streams, all complete"""
    async def f(client):
        texts = await asyncio.gather(*(text_of_stream(client, "Count: 1, 2, 3,", 8, extra_body={"ignore_eos": True})
                                       for _ in range(100)))
        equal(len(set(texts)), 1, "different answers")
    run(f)


@check
def chat():
    """chat, whole and streamed with async iteration"""
    async def f(client):
        ask = {"model": MODEL, "messages": [{"role": "user", "content": "Name a colour."}], "max_tokens": 24, "temperature": 0}
        whole = await client.chat.completions.create(**ask)
        text = ""
        async for x in await client.chat.completions.create(**ask, stream=True):
            text += x.choices[0].delta.content or ""
        equal(text, whole.choices[0].message.content)
        equal([m.id async for m in client.models.list()][0], MODEL)
    run(f)


@check
def errors():
    """errors: a class for each status"""
    async def f(client):
        for kind, model, temperature in ((openai.NotFoundError, "none", 0), (openai.BadRequestError, MODEL, -1)):
            for stream in (False, True):
                try:
                    await client.completions.create(model=model, prompt="x", temperature=temperature, stream=stream)
                    true(False, f"no {kind.__name__}")
                except openai.APIStatusError as e:
                    equal(type(e), kind)
    run(f)


@check
def cancelled():
    """cancelled tasks release their slots, before and after the first token"""
    c.quiet()
    long = {"extra_body": {"ignore_eos": True}}

    async def f(client):
        tasks = [asyncio.create_task(text_of(client, p, 6000, **long)) for p in PROMPTS[:8]]
        tasks += [asyncio.create_task(text_of_stream(client, p, 6000, **long)) for p in PROMPTS[8:]]
        await asyncio.sleep(0.7)
        true(await asyncio.to_thread(c.busy), "nothing runs")
        for t in tasks:
            t.cancel()
        equal({type(x) for x in await asyncio.gather(*tasks, return_exceptions=True)}, {asyncio.CancelledError})
        return await asyncio.to_thread(c.quiet)
    return f"after {1000 * run(f):.0f} ms"


@check
def cancelled_prompt():
    """a request cancelled during the prefill of a long prompt releases its slot"""
    c.quiet()

    async def f(client):
        t = asyncio.create_task(client.completions.create(
            model=MODEL, prompt=[i % 1000 + 2000 for i in range(7000)], max_tokens=1))
        await asyncio.sleep(0.3)
        true(not t.done() and await asyncio.to_thread(c.busy), "nothing runs")
        t.cancel()
        await asyncio.gather(t, return_exceptions=True)
        return await asyncio.to_thread(c.quiet)
    return f"after {1000 * run(f):.0f} ms"


@check
def alive():
    """connection reuse: 50 sequential requests of one client"""
    async def f(client):
        begin = time.monotonic()
        for _ in range(50):
            await text_of(client, "a", 1)
        return f"{1000 * (time.monotonic() - begin) / 50:.1f} ms each"
    return run(f)


if __name__ == "__main__":
    raise SystemExit(c.main("openai async"))
