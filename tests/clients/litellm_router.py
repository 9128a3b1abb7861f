"""LiteLLM: its functions with the OpenAI API, and its Router, which answers an overlong prompt with another deployment. The
first deployment is a server whose workers have little memory for KV, so that its context length is less than the model's."""

import asyncio
import os

import litellm
from litellm.litellm_core_utils.exception_mapping_utils import ExceptionCheckers

import check as c
from check import check, equal, raises, true

SHORT = c.need(os.environ.get("PHASEPIPE_SHORT"), "PHASEPIPE_SHORT: a server with a shorter context length")
MODEL = c.model()
ASK = [{"role": "user", "content": "Name a colour."}]
litellm.telemetry = False
litellm.suppress_debug_info = True


def deployment(name, url):
    return {"model_name": name, "litellm_params": {"model": f"openai/{MODEL}", "api_base": url + "/v1", "api_key": "none",
                                                   "max_retries": 0}}


def complete(url=c.URL, **more):
    return litellm.completion(**{"model": f"openai/{MODEL}", "api_base": url + "/v1", "api_key": "none", "max_retries": 0,
                                 "messages": ASK, "max_tokens": 8, "temperature": 0, **more})


def text_of(parts):
    return "".join(y.delta.content or "" for x in parts for y in x.choices)


def context(url):
    return c.get("/v1/models", url=url)["data"][0]["max_model_len"]


def long_prompt():
    """A prompt that exceeds the context length of the first deployment only."""
    true(context(SHORT) * 2 < context(c.URL), f"context lengths {context(SHORT)} and {context(c.URL)}")
    return [{"role": "user", "content": "word " * (context(SHORT) + 100)}]


def router(**more):
    return litellm.Router(model_list=[deployment("short", SHORT), deployment("long", c.URL)], num_retries=0, **more)


@check
def chat():
    """chat, whole and streamed: the same text"""
    a = complete()
    true(a.choices[0].message.content and a.usage.completion_tokens <= 8, a)
    parts = list(complete(stream=True, stream_options={"include_usage": True}))
    equal(text_of(parts), a.choices[0].message.content)
    equal(parts[-1].usage.completion_tokens, a.usage.completion_tokens, "tokens in the stream")


@check
def completion():
    """text completion"""
    a = litellm.text_completion(model=f"text-completion-openai/{MODEL}", api_base=c.URL + "/v1", api_key="none",
                                prompt="The capital of France is", max_tokens=8, temperature=0)
    true("Paris" in a.choices[0].text, a)


@check
def asynchronous():
    """16 concurrent requests: the same text"""
    async def f():
        many = await asyncio.gather(*(litellm.acompletion(
            model=f"openai/{MODEL}", api_base=c.URL + "/v1", api_key="none", messages=ASK, max_tokens=8, temperature=0)
            for _ in range(16)))
        equal({x.choices[0].message.content for x in many}, {complete().choices[0].message.content})
    asyncio.run(f())


@check
def ollama():
    """the Ollama API: chat, whole and streamed"""
    url = c.need(c.OLLAMA, "PHASEPIPE_OLLAMA")
    ask = {"model": f"ollama_chat/{MODEL}", "api_base": url, "messages": ASK, "max_tokens": 8, "temperature": 0}
    a = litellm.completion(**ask)
    true(a.choices[0].message.content, a)
    equal(text_of(litellm.completion(**ask, stream=True)), a.choices[0].message.content)


@check
def overlong():
    """an overlong prompt, or an overlong answer: ContextWindowExceededError"""
    for more in ({"messages": [{"role": "user", "content": "word " * 20000}]}, {"max_tokens": 10 ** 6}):
        for stream in (False, True):
            raises(litellm.ContextWindowExceededError, lambda: complete(stream=stream, **more), str(more)[:40])
    status, _, text = c.http("/v1/chat/completions", {"messages": ASK, "max_tokens": 10 ** 6})
    true(status == 400 and ExceptionCheckers.is_error_str_context_window_exceeded(text), text)
    url = c.need(c.OLLAMA, "PHASEPIPE_OLLAMA")
    status, _, text = c.http("/api/chat", {"model": MODEL, "messages": [{"role": "user", "content": "word " * 20000}]}, url=url)
    true(status == 400 and ExceptionCheckers.is_error_str_context_window_exceeded(text), text)


@check
def errors():
    """other errors: NotFoundError, BadRequestError"""
    raises(litellm.NotFoundError, lambda: complete(model="openai/no-such"))
    raises(litellm.BadRequestError, lambda: complete(extra_body={"top_p": 5}))
    true(not ExceptionCheckers.is_error_str_context_window_exceeded(
        c.http("/v1/chat/completions", {"messages": ASK, "top_p": 5})[2]), "a bad top_p is taken for an overlong prompt")


@check
def falls_back():
    """Router: an overlong prompt is answered by the deployment of context_window_fallbacks"""
    me = router(context_window_fallbacks=[{"short": ["long"]}])
    a = me.completion(model="short", messages=long_prompt(), max_tokens=4)
    true(a.usage.prompt_tokens > context(SHORT) and a.choices[0].finish_reason, a)
    parts = list(me.completion(model="short", messages=long_prompt(), max_tokens=4, stream=True))
    true(any(y.finish_reason for x in parts for y in x.choices), parts)
    a = asyncio.run(me.acompletion(model="short", messages=long_prompt(), max_tokens=4))
    true(a.choices[0].finish_reason, a)


@check
def stays():
    """Router: without a fallback the error remains, and a short prompt stays with its deployment"""
    raises(litellm.ContextWindowExceededError,
           lambda: router().completion(model="short", messages=long_prompt(), max_tokens=4))
    before = c.http("/metrics", url=SHORT)[2]
    count = lambda text: sum(float(x.split()[-1]) for x in text.splitlines() if x.startswith("vllm:request_success_total"))
    router(context_window_fallbacks=[{"short": ["long"]}]).completion(model="short", messages=ASK, max_tokens=4)
    equal(count(c.http("/metrics", url=SHORT)[2]), count(before) + 1, "requests of the first deployment")


if __name__ == "__main__":
    raise SystemExit(c.main("litellm"))
