"""The openai package, synchronous. The client does not validate answers, so the checks validate each one with the package's
models in strict mode: types and names are those that OpenAI documents."""

import math
import threading
import time

import openai
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk

import check as c
from check import check, equal, raises, true

ME = openai.OpenAI(base_url=c.URL + "/v1", api_key="none", max_retries=0, timeout=120)
MODEL = c.model()
ASK = [{"role": "system", "content": "You answer in one sentence."}, {"role": "user", "content": "Name a river in Europe."}]
TEXT = "The capital of France is"


def strict(kind, answer):
    """Validates the answer as an object of that class: types are strict, required fields are present. Returns it."""
    kind.model_validate(answer.to_dict(mode="json", exclude_unset=True), strict=True)
    for k, f in kind.model_fields.items():
        if f.is_required():
            true(k in answer.model_fields_set, f"{kind.__name__} without {k}")
    return answer


def chat(**more):
    more = {"model": MODEL, "messages": ASK, "max_tokens": 24, "temperature": 0, **more}
    return ME.chat.completions.create(**more)


def complete(**more):
    more = {"model": MODEL, "prompt": TEXT, "max_tokens": 12, "temperature": 0, **more}
    return ME.completions.create(**more)


def joined(chunks):
    """(texts by choice, finish reasons by choice, usage or None) of a stream of chat or completions."""
    texts, ends, usage = {}, {}, None
    for x in chunks:
        usage = x.usage or usage
        for y in x.choices:
            texts.setdefault(y.index, "")
            true(y.index not in ends, "a chunk after the finish reason")
            texts[y.index] += (y.delta.content if hasattr(y, "delta") else y.text) or ""
            if y.finish_reason:
                ends[y.index] = y.finish_reason
    return texts, ends, usage


@check
def models():
    """models.list and models.retrieve"""
    all_of_them = ME.models.list().data
    true(all_of_them, "no model")
    strict(Model, all_of_them[0])
    equal(all_of_them[0].object, "model")
    true(all_of_them[0].root and all_of_them[0].max_model_len > 0, "root and max_model_len")
    equal(ME.models.retrieve(MODEL).id, MODEL)
    raises(openai.NotFoundError, lambda: ME.models.retrieve("no-such-model"))


@check
def chat_whole():
    """chat"""
    a = strict(ChatCompletion, chat())
    equal((a.object, a.model, a.choices[0].message.role, len(a.choices)), ("chat.completion", MODEL, "assistant", 1))
    true(a.id.startswith("chatcmpl-") and abs(a.created - time.time()) < 60, f"id {a.id}, created {a.created}")
    true(a.choices[0].message.content and a.choices[0].finish_reason in ("stop", "length"), a)
    equal(a.usage.total_tokens, a.usage.prompt_tokens + a.usage.completion_tokens)
    equal(c.post("/tokenize", {"messages": ASK})["count"], a.usage.prompt_tokens, "count of /tokenize, and prompt tokens")
    equal(chat().choices[0].message.content, a.choices[0].message.content, "a second greedy answer")
    equal(chat(max_tokens=None, max_completion_tokens=3).usage.completion_tokens, 3)


@check
def chat_parts():
    """chat, content as an array of texts"""
    parts = [{**m, "content": [{"type": "text", "text": m["content"]}]} for m in ASK]
    equal(chat(messages=parts).choices[0].message.content, chat().choices[0].message.content)


@check
def chat_stream():
    """chat, streaming: the same text, chunks as documented"""
    whole = chat(max_tokens=40)
    chunks = [strict(ChatCompletionChunk, x)
              for x in chat(max_tokens=40, stream=True, stream_options={"include_usage": True})]
    equal({x.object for x in chunks}, {"chat.completion.chunk"})
    equal(len({x.id for x in chunks}), 1, "ids")
    equal((chunks[0].choices[0].delta.role, chunks[0].choices[0].delta.content), ("assistant", ""), "first delta")
    true(all(x.choices[0].delta.role is None for x in chunks[1:-1]), "a role in a later delta")
    texts, ends, usage = joined(chunks)
    equal((texts[0], ends[0]), (whole.choices[0].message.content, whole.choices[0].finish_reason))
    equal(chunks[-1].choices, [], "choices of the last chunk")
    equal([usage.prompt_tokens, usage.completion_tokens], [whole.usage.prompt_tokens, whole.usage.completion_tokens])
    true(all(x.usage is None for x in chunks[:-1]), "usage in an earlier chunk")
    true(all(x.usage is None for x in chat(stream=True)), "usage that was not requested")


@check
def chat_helper():
    """chat.completions.stream, the helper that assembles events"""
    kinds, text = set(), ""
    with ME.chat.completions.stream(model=MODEL, messages=ASK, max_tokens=200, temperature=0, logprobs=True,
                                    stream_options={"include_usage": True}) as s:
        for e in s:
            kinds.add(e.type)
            text += e.delta if e.type == "content.delta" else ""
        a = s.get_final_completion()
    true({"chunk", "content.delta", "content.done", "logprobs.content.delta"} <= kinds, kinds)
    equal([text, a.choices[0].message.content], [chat(max_tokens=200).choices[0].message.content] * 2)
    equal(len(a.choices[0].logprobs.content), a.usage.completion_tokens)


@check
def completion_whole():
    """completions"""
    a = strict(Completion, complete())
    equal((a.object, a.model, a.choices[0].index), ("text_completion", MODEL, 0))
    true(a.id.startswith("cmpl-") and a.choices[0].text, a)
    equal((a.usage.completion_tokens, a.choices[0].finish_reason), (12, "length"))
    equal(complete(max_tokens=None).usage.completion_tokens <= 16, True, "16 tokens by default")
    equal(joined(complete(stream=True))[0][0], a.choices[0].text, "streamed text")
    chunks = list(complete(stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True}))
    equal({(x.object, x.id, x.model) for x in chunks}, {("text_completion", chunks[0].id, MODEL)})
    counts = [x.usage.completion_tokens for x in chunks]
    true(counts == sorted(counts) and counts[0] <= 2, f"usage of each chunk: {counts}")
    texts, ends, usage = joined(chunks)
    equal((texts[0], ends[0], usage.completion_tokens), (a.choices[0].text, "length", 12))


@check
def prompts():
    """completions: several prompts, with n, and prompts of ids"""
    texts = [TEXT, "Once upon a time"]
    alone = [complete(prompt=p).choices[0].text for p in texts]
    a = complete(prompt=texts)
    equal([x.text for x in sorted(a.choices, key=lambda x: x.index)], alone)
    ids = [c.post("/tokenize", {"prompt": p})["tokens"] for p in texts]
    equal(a.usage.prompt_tokens, sum(map(len, ids)))
    equal(complete(prompt=ids[0]).choices[0].text, alone[0], "a prompt of ids")
    equal([x.text for x in sorted(complete(prompt=ids).choices, key=lambda x: x.index)], alone, "lists of ids")
    both = complete(prompt=texts, n=2, temperature=1, seed=3)
    equal(sorted(x.index for x in both.choices), [0, 1, 2, 3])
    one = complete(prompt=texts[1:], n=2, temperature=1, seed=3)
    equal([x.text for x in sorted(both.choices, key=lambda x: x.index)[2:]],
          [x.text for x in sorted(one.choices, key=lambda x: x.index)], "index is the choice + prompt x n")
    streamed = joined(complete(prompt=texts, n=2, temperature=1, seed=3, stream=True))[0]
    equal([streamed[i] for i in range(4)], [x.text for x in sorted(both.choices, key=lambda x: x.index)])


@check
def several():
    """n, seed"""
    a, b = (chat(n=3, temperature=1, seed=11, max_tokens=20) for _ in range(2))
    texts = [x.message.content for x in a.choices]
    equal([x.index for x in a.choices], [0, 1, 2])
    equal(len(set(texts)), 3, f"different answers of {texts}")
    equal(texts, [x.message.content for x in b.choices], "the same seed again")
    true(texts != [x.message.content for x in chat(n=3, temperature=1, seed=12, max_tokens=20).choices], "another seed")
    streamed, ends, _ = joined(chat(n=3, temperature=1, seed=11, max_tokens=20, stream=True))
    equal([streamed[i] for i in range(3)], texts, "streamed")
    equal(sorted(ends), [0, 1, 2])
    true(a.usage.completion_tokens > 20, "usage counts all choices")


@check
def logprobs_of_chat():
    """logprobs and top_logprobs of chat"""
    a = chat(logprobs=True, top_logprobs=4)
    content = a.choices[0].logprobs.content
    text = content[:-1] if a.choices[0].finish_reason == "stop" else content  # as in vLLM, the last is the end of the turn
    equal("".join(t.token for t in text), a.choices[0].message.content)
    equal(b"".join(bytes(t.bytes) for t in text).decode(), a.choices[0].message.content)
    equal(len(content), a.usage.completion_tokens)
    for t in content:
        top = [x.logprob for x in t.top_logprobs]
        equal((len(top), top), (4, sorted(top, reverse=True)))
        true(t.logprob <= 0 and sum(map(math.exp, top)) <= 1.0001, t)
        equal((t.top_logprobs[0].token, t.top_logprobs[0].logprob), (t.token, t.logprob), "greedy takes the best")
    streamed = [t for x in chat(logprobs=True, top_logprobs=4, stream=True) if x.choices and x.choices[0].logprobs
                for t in x.choices[0].logprobs.content or []]
    equal([(t.token, t.logprob) for t in streamed], [(t.token, t.logprob) for t in content], "streamed")
    equal(chat(logprobs=True).choices[0].logprobs.content[0].top_logprobs, [], "top_logprobs that was not requested")
    true(chat().choices[0].logprobs is None, "logprobs that were not requested")


@check
def logprobs_of_completions():
    """logprobs of completions, echo"""
    a = complete(logprobs=3, echo=True).choices[0]
    lp = a.logprobs
    true(a.text.startswith(TEXT), a.text)
    equal("".join(lp.tokens), a.text)
    equal(lp.text_offset, [sum(map(len, lp.tokens[:i])) for i in range(len(lp.tokens))])
    equal((lp.token_logprobs[0], lp.top_logprobs[0]), (None, None), "of the first token of the prompt")
    n = len(c.post("/tokenize", {"prompt": TEXT})["tokens"])
    equal([len(lp.tokens), len(lp.token_logprobs), len(lp.top_logprobs)], [n + 12] * 3)
    true(all(x <= 0 for x in lp.token_logprobs[1:]), lp.token_logprobs)
    true(all(3 <= len(t) <= 4 and lp.tokens[i + 1] in t for i, t in enumerate(lp.top_logprobs[1:])), lp.top_logprobs)
    without = complete(logprobs=3).choices[0].logprobs
    equal([without.tokens, without.token_logprobs], [lp.tokens[n:], lp.token_logprobs[n:]], "without echo")
    tokens = [t for x in complete(logprobs=3, echo=True, stream=True) for y in x.choices for t in
              (y.logprobs.tokens if y.logprobs else [])]
    equal(tokens, lp.tokens, "streamed")


@check
def stops():
    """stop texts: the answer ends before the match, and no part of the match is streamed"""
    whole = complete(prompt="1, 2, 3, 4,", max_tokens=24).choices[0].text
    stop = whole[7:11]  # begins in the middle of the answer, and most likely of a token
    a = complete(prompt="1, 2, 3, 4,", max_tokens=24, stop=[stop, "never to be seen"])
    equal((a.choices[0].text, a.choices[0].finish_reason), (whole[:whole.index(stop)], "stop"))
    equal(a.choices[0].stop_reason, stop, "stop_reason")
    texts, ends, _ = joined(complete(prompt="1, 2, 3, 4,", max_tokens=24, stop=stop, stream=True))
    equal((texts[0], ends[0]), (a.choices[0].text, "stop"), "streamed")
    more = complete(prompt="1, 2, 3, 4,", max_tokens=24, stop=stop, extra_body={"include_stop_str_in_output": True})
    equal(more.choices[0].text, whole[:whole.index(stop)] + stop)


@check
def fields():
    """fields in addition to OpenAI's: ignore_eos, min_tokens, top_k, return_token_ids, …"""
    a = chat(max_tokens=100, extra_body={"ignore_eos": True})
    equal((a.usage.completion_tokens, a.choices[0].finish_reason), (100, "length"))
    true(chat(max_tokens=100, extra_body={"min_tokens": 60}).usage.completion_tokens >= 60, "min_tokens")
    equal(chat(temperature=1, seed=1, extra_body={"top_k": 1}).choices[0].message.content, chat().choices[0].message.content)
    equal(chat(temperature=1, top_p=1e-6, seed=1).choices[0].message.content, chat().choices[0].message.content)
    b = complete(extra_body={"return_token_ids": True}).choices[0]
    equal(c.post("/detokenize", {"tokens": b.token_ids})["prompt"], b.text)
    equal(b.prompt_token_ids, c.post("/tokenize", {"prompt": TEXT})["tokens"])
    first = b.token_ids[0]
    other = complete(logit_bias={str(first): -100}, extra_body={"return_token_ids": True}).choices[0]
    true(first not in other.token_ids, "a banned token")
    only = complete(extra_body={"allowed_token_ids": [first], "return_token_ids": True}).choices[0]
    equal(set(only.token_ids), {first}, "allowed_token_ids")
    true(chat(frequency_penalty=2.0, presence_penalty=2.0, max_tokens=60).choices[0].message.content !=
         chat(max_tokens=60).choices[0].message.content, "penalties change nothing")
    chat(extra_body={"no_such_field": [1, {"a": None}]}, user="u-1")


@check
def errors():
    """errors: a class for each status"""
    e = raises(openai.NotFoundError, lambda: chat(model="no-such-model"), "an unknown model")
    equal((e.status_code, e.param, e.body["code"]), (404, "model", 404))
    true("no-such-model" in e.message, e.message)
    e = raises(openai.BadRequestError, lambda: chat(temperature=-1), "temperature -1")
    true("temperature" in e.message and e.type == "BadRequestError", e.message)
    raises(openai.NotFoundError, lambda: ME.embeddings.create(model=MODEL, input="x"), "embeddings")
    e = raises(openai.NotFoundError, lambda: ME.get("/nothing", cast_to=object), "an unknown path")
    e = raises(openai.APIStatusError, lambda: ME.get("/chat/completions", cast_to=object), "GET of a POST")
    equal(e.status_code, 405)


BAD = {  # case: (fields, a word that the error must contain)
    "an empty prompt": ({"prompt": ""}, None),
    "an empty list as prompt": ({"prompt": []}, None),
    "a prompt of a wrong type": ({"prompt": {"a": 1}}, "prompt"),
    "a negative id": ({"prompt": [-1]}, "prompt"),
    "an id beyond the vocabulary": ({"prompt": [4294967296]}, "prompt"),
    "temperature 2.5": ({"temperature": 2.5}, "temperature"),
    "temperature as text": ({"temperature": "hot"}, "temperature"),
    "top_p -0.1": ({"top_p": -0.1}, "top_p"),
    "top_p 1.5": ({"top_p": 1.5}, "top_p"),
    "presence_penalty 3": ({"presence_penalty": 3}, "presence_penalty"),
    "frequency_penalty -3": ({"frequency_penalty": -3}, "frequency_penalty"),
    "max_tokens -1": ({"max_tokens": -1}, "max_tokens"),
    "max_tokens 1.5": ({"max_tokens": 1.5}, "max_tokens"),
    "n 0": ({"n": 0}, "n"),
    "n 2 with temperature 0": ({"n": 2}, "n"),
    "an empty stop": ({"stop": [""]}, "stop"),
    "logprobs -2": ({"logprobs": -2}, "logprobs"),
    "logprobs 1000": ({"logprobs": 1000}, "logprobs"),
    "stream_options without stream": ({"stream_options": {"include_usage": True}}, "stream_options"),
    "a bias of an unknown id": ({"logit_bias": {"99999999": 5}}, "logit_bias"),
    "a bias without an id": ({"logit_bias": {"abc": 5}}, "logit_bias"),
    "a bias that is null": ({"logit_bias": {"5": None}}, "logit_bias"),
    "a suffix": ({"suffix": "x"}, "suffix"),
    "min_tokens above max_tokens": ({"extra_body": {"min_tokens": 50}}, "min_tokens"),
    "an unknown stop id": ({"extra_body": {"stop_token_ids": [99999999]}}, "stop_token_ids"),
    "no allowed id": ({"extra_body": {"allowed_token_ids": []}}, "allowed_token_ids"),
    "structured output": ({"extra_body": {"structured_outputs": {"regex": "a+"}}}, "structured_outputs"),
    "a prompt over the context length": ({"prompt": "word " * 20000}, None),
}
BAD_CHAT = {
    "no messages": ({"messages": []}, "messages"),
    "messages of a wrong type": ({"messages": "hello"}, "messages"),
    "a message without a role": ({"messages": [{"content": "x"}]}, "role"),
    "content that is a number": ({"messages": [{"role": "user", "content": 1}]}, "content"),
    "an image": ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]}, None),
    "top_logprobs without logprobs": ({"top_logprobs": 3}, "logprobs"),
    "top_logprobs 1000": ({"logprobs": True, "top_logprobs": 1000}, "logprobs"),
    "tools": ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]}, "tools"),
    "a JSON object": ({"response_format": {"type": "json_object"}}, "response_format"),
    "a prompt and an answer over the context length": ({"max_tokens": 10 ** 6}, None),
}


@check
def bad_inputs():
    """bad inputs: BadRequestError that names the field"""
    wrong = []
    for call, table in ((complete, BAD), (chat, BAD_CHAT)):
        for what, (more, word) in table.items():
            for stream in ({},) if "stream_options" in more else ({}, {"stream": True}):
                try:
                    e = raises(openai.BadRequestError, lambda: call(**more, **stream), what)
                    equal(e.body["code"], "context_length_exceeded" if "context length" in what else 400, f"{what}: code")
                    true(e.message and e.type, f"{what}: body {e.body}")
                    true(not word or word in e.message or word in (e.param or ""), f"{what}: {word} is not named: {e.message}")
                except AssertionError as e:
                    wrong.append(str(e)[:150])
    true(not wrong, f"{len(wrong)} wrong: {'; '.join(wrong)}")
    limit = ME.models.list().data[0].max_model_len
    e = raises(openai.BadRequestError, lambda: complete(prompt="word " * 20000))
    true(str(limit) in e.message.replace(",", "") and "2000" in e.message.replace(",", ""),
         f"the limit and the prompt's tokens: {e.message}")
    return f"{len(BAD) + len(BAD_CHAT)} of them"


@check
def harmless():
    """fields at their defaults, as clients send them"""
    want = chat().choices[0].message.content
    equal(chat(tools=[], tool_choice="none", response_format={"type": "text"}, parallel_tool_calls=True, n=1, stop=None,
               presence_penalty=0, frequency_penalty=0, logit_bias={}, top_p=1, user="u", store=False,
               metadata={"a": "b"}).choices[0].message.content, want)
    equal(complete(best_of=1, suffix=None, stop=[], logprobs=None, echo=False).choices[0].text, complete().choices[0].text)


@check
def nothing_to_do():
    """what asks for what happens anyway: tools with tool_choice none, enable_thinking of a model without it"""
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    want = chat().choices[0].message.content
    equal(chat(tools=[tool], tool_choice="none").choices[0].message.content, want)
    equal(chat(extra_body={"chat_template_kwargs": {"enable_thinking": False}}).choices[0].message.content, want)


@check
def history():
    """a response is taken back as it was received; developer is system"""
    first = chat().choices[0].message
    more = {"role": "user", "content": "Why?"}
    want = chat(messages=[*ASK, {"role": "assistant", "content": first.content}, more])
    for message in (first, first.model_dump(), {**first.model_dump(), "reasoning_content": ""}):
        equal(chat(messages=[*ASK, message, more]).choices[0].message.content, want.choices[0].message.content)
    a, b = (chat(messages=[{"role": role, "content": "Be brief."}, *ASK]) for role in ("developer", "system"))
    equal((a.usage.prompt_tokens, a.choices[0].message.content), (b.usage.prompt_tokens, b.choices[0].message.content))
    raises(openai.BadRequestError, lambda: chat(messages=[{"role": "banana", "content": "x"}]))


@check
def keys():
    """AuthenticationError without the right key"""
    url = c.need(c.KEYED, "a server with a key") + "/v1"
    for key in ("wrong", c.KEY + "x", c.KEY[:-1]):
        e = raises(openai.AuthenticationError, lambda: openai.OpenAI(base_url=url, api_key=key, max_retries=0).models.list())
        equal((e.status_code, e.body["code"]), (401, 401))
        true(c.KEY not in e.message, "the key is in the error")
    right = openai.OpenAI(base_url=url, api_key=c.KEY, max_retries=0)
    true(right.chat.completions.create(model=MODEL, messages=ASK, max_tokens=2).choices, "no answer with the right key")


@check
def limits():
    """RateLimitError if the queue is full; the client's retries succeed"""
    url = c.need(c.NARROW, "a server with --max-waiting 1") + "/v1"
    me = openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=120)
    long = [i % 1000 + 1000 for i in range(7000)]

    def fill():
        me.completions.create(model=MODEL, prompt=long, max_tokens=1)
    t = threading.Thread(target=fill)
    t.start()
    try:
        c.until(lambda: c.get("/load", url=c.NARROW)["server_load"], 5, "the long prompt runs")
        e = raises(openai.RateLimitError, lambda: me.completions.create(model=MODEL, prompt=TEXT, max_tokens=1))
        equal(e.status_code, 429)
        true(float(e.response.headers["retry-after"]) >= 0, "Retry-After")
        patient = me.with_options(max_retries=100)  # a second each at least: the long prompt is slow on a busy machine
        true(patient.completions.create(model=MODEL, prompt=TEXT, max_tokens=1).choices, "no answer after retries")
    finally:
        t.join()


@check
def headers():
    """with_raw_response: the id ends with x-request-id"""
    raw = ME.chat.completions.with_raw_response.create(model=MODEL, messages=ASK, max_tokens=2,
                                                       extra_headers={"X-Request-Id": "check-4711"})
    equal(raw.headers["x-request-id"], "check-4711")
    equal(raw.parse().id, "chatcmpl-check-4711")
    equal(raw.headers["content-type"].split(";")[0], "application/json")
    a, b = chat(max_tokens=1), chat(max_tokens=1)
    true(a._request_id and a.id.endswith(a._request_id) and a.id != b.id, f"{a._request_id} {a.id} {b.id}")
    with ME.completions.with_streaming_response.create(model=MODEL, prompt=TEXT, max_tokens=2, stream=True,
                                                       extra_headers={"X-Request-Id": "s-1"}) as s:
        equal((s.headers["x-request-id"], s.headers["content-type"]), ("s-1", "text/event-stream; charset=utf-8"))
        true('"cmpl-s-1"' in s.read().decode(), "the id in the stream")
    e = raises(openai.NotFoundError, lambda: ME.chat.completions.create(
        model="none", messages=ASK, extra_headers={"X-Request-Id": "bad-1"}))
    equal(e.request_id, "bad-1", "of an error")


LONG = {"max_tokens": 6000, "extra_body": {"ignore_eos": True}}


@check
def leaves_stream():
    """a disconnect in the middle of a stream releases its slot"""
    c.quiet()
    s = complete(stream=True, **LONG)
    for _, _ in zip(s, range(4)):
        pass
    true(c.busy(), "nothing runs while a stream is read")
    s.close()
    return f"after {1000 * c.quiet():.0f} ms"


@check
def leaves_waiting():
    """a timeout raises APITimeoutError and releases the slot"""
    c.quiet()
    me = ME.with_options(timeout=1.0)
    raises(openai.APITimeoutError, lambda: me.completions.create(model=MODEL, prompt=TEXT, temperature=0, **LONG))
    return f"after {1000 * c.quiet():.0f} ms"


@check
def slow_reader():
    """a slow reader receives the whole answer and does not delay other requests"""
    s = complete(stream=True, max_tokens=400, extra_body={"ignore_eos": True}, stream_options={"include_usage": True})
    next(iter(s))
    time.sleep(1)
    begin = time.monotonic()
    complete()
    took = time.monotonic() - begin
    _, ends, usage = joined(s)
    equal((ends[0], usage.completion_tokens), ("length", 400))
    true(took < 5, f"another request took {took:.1f} s")


if __name__ == "__main__":
    raise SystemExit(c.main("openai"))
