"""The OpenAI Agents SDK with its chat completions model. (Its Responses model needs /v1/responses, which this server lacks.)"""

import asyncio

import openai
from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, RunConfig, Runner, set_tracing_disabled

import check as c
from check import check, equal, true

MODEL = c.model()
set_tracing_disabled(True)
ASK = "Name a colour."


def client():
    return openai.AsyncOpenAI(base_url=c.URL + "/v1", api_key="none", max_retries=0, timeout=120)


def agent(model=MODEL, **settings):
    return Agent(name="a", instructions="Be brief.",
                 model=OpenAIChatCompletionsModel(model=model, openai_client=client()),
                 model_settings=ModelSettings(**{"temperature": 0, "max_tokens": 16, **settings}))


def run(text, **more):
    return asyncio.run(Runner.run(agent(**more), text, run_config=RunConfig(tracing_disabled=True)))


def direct(*messages):
    return c.post("/v1/chat/completions", {"model": MODEL, "temperature": 0, "max_tokens": 16, "messages": [
        {"role": "system", "content": "Be brief."}, *messages]})["choices"][0]["message"]["content"]


@check
def chat():
    """run: the text and the usage"""
    a = run(ASK)
    equal(a.final_output, direct({"role": "user", "content": ASK}))
    usage = a.context_wrapper.usage
    true(usage.requests == 1 and usage.input_tokens > 0 and 0 < usage.output_tokens <= 16, usage)


@check
def stream():
    """run_streamed: the same text, in pieces"""
    async def f():
        a = Runner.run_streamed(agent(), ASK)
        pieces = [e.data.delta async for e in a.stream_events()
                  if e.type == "raw_response_event" and e.data.type == "response.output_text.delta"]
        equal("".join(pieces), a.final_output)
        return a.final_output, len(pieces)
    text, n = asyncio.run(f())
    equal(text, run(ASK).final_output)
    true(n > 1, "one piece")


@check
def turns():
    """a second turn with the first as its input"""
    first = run(ASK)
    a = run([*first.to_input_list(), {"role": "user", "content": "Another one."}])
    equal(a.final_output, direct({"role": "user", "content": ASK}, {"role": "assistant", "content": first.final_output},
                                 {"role": "user", "content": "Another one."}))


@check
def errors():
    """an unknown model, an overlong prompt: the errors of openai"""
    for call, kind, code in ((lambda: run(ASK, model="no-such"), openai.NotFoundError, 404),
                             (lambda: run("word " * 20000), openai.BadRequestError, "context_length_exceeded")):
        try:
            call()
        except kind as e:
            equal(e.body["code"], code)
        else:
            true(False, f"nothing raised: {code}")


if __name__ == "__main__":
    raise SystemExit(c.main("openai-agents"))
