"""Pydantic AI with text output, by its model for chat completions."""

import asyncio

from pydantic_ai import Agent
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

import check as c
from check import check, equal, true

MODEL = c.model()
ASK = "Name a colour."


def agent(model=MODEL):
    return Agent(OpenAIChatModel(model, provider=OpenAIProvider(base_url=c.URL + "/v1", api_key="none")),
                 instructions="Be brief.", model_settings={"temperature": 0, "max_tokens": 16}, retries=0)


def direct(*messages):
    return c.post("/v1/chat/completions", {"model": MODEL, "temperature": 0, "max_tokens": 16, "messages": [
        {"role": "system", "content": "Be brief."}, *messages]})["choices"][0]["message"]["content"]


@check
def chat():
    """run_sync: the text and the usage"""
    a = agent().run_sync(ASK)
    equal(a.output, direct({"role": "user", "content": ASK}))
    usage = a.usage() if callable(a.usage) else a.usage
    true(usage.input_tokens > 0 and 0 < usage.output_tokens <= 16, usage)


@check
def stream():
    """run_stream: the same text, in pieces"""
    async def f():
        async with agent().run_stream(ASK) as a:
            return [x async for x in a.stream_text(delta=True, debounce_by=None)]
    pieces = asyncio.run(f())
    true(len(pieces) > 1, pieces)
    equal("".join(pieces), agent().run_sync(ASK).output)


@check
def turns():
    """a second turn with message_history"""
    first = agent().run_sync(ASK)
    a = agent().run_sync("Another one.", message_history=first.all_messages())
    equal(a.output, direct({"role": "user", "content": ASK}, {"role": "assistant", "content": first.output},
                           {"role": "user", "content": "Another one."}))


@check
def errors():
    """an unknown model, an overlong prompt: ModelHTTPError with the body"""
    for call, status, code in ((lambda: agent("no-such").run_sync(ASK), 404, 404),
                               (lambda: agent().run_sync("word " * 20000), 400, "context_length_exceeded")):
        try:
            call()
        except ModelHTTPError as e:
            equal((e.status_code, e.body["code"]), (status, code))
        else:
            true(False, f"nothing raised: {code}")


if __name__ == "__main__":
    raise SystemExit(c.main("pydantic-ai"))
