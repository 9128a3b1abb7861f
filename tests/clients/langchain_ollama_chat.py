"""LangChain: ChatOllama and OllamaLLM of langchain-ollama."""

import asyncio

import ollama
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_ollama import ChatOllama, OllamaLLM

import check as c
from check import check, equal, true

URL = c.need(c.OLLAMA, "PHASEPIPE_OLLAMA")
MODEL = c.get("/api/tags", url=URL)["models"][0]["name"]
SERVER = {"model": MODEL, "base_url": URL, "temperature": 0, "num_predict": 16}
ASK = "Name a colour."


@check
def chat():
    """invoke and stream: the same text, with its usage; validate_model_on_init finds the model"""
    me = ChatOllama(**SERVER, validate_model_on_init=True)
    a = me.invoke(ASK)
    true(a.content and a.usage_metadata["input_tokens"] > 0 and a.usage_metadata["output_tokens"] <= 16, a)
    true(a.response_metadata["done_reason"] in ("stop", "length") and a.response_metadata["total_duration"] > 0, a)
    parts = list(me.stream(ASK))
    equal("".join(x.content for x in parts), a.content)
    equal(asyncio.run(me.ainvoke(ASK)).content, a.content)


@check
def history():
    """a conversation, with a response as it was received"""
    me = ChatOllama(**SERVER)
    first = me.invoke(ASK)
    talk = [SystemMessage("Be brief."), HumanMessage(ASK), first, HumanMessage("Another one.")]
    equal(me.invoke(talk).content, me.invoke([*talk[:2], AIMessage(first.content), talk[3]]).content)


@check
def options():
    """stop, seed, reasoning false, logprobs"""
    me = ChatOllama(**SERVER)
    whole = me.invoke(ASK).content
    equal(me.invoke(ASK, stop=[whole[4:7]]).content, whole[:whole.index(whole[4:7])])
    equal(ChatOllama(**SERVER, reasoning=False).invoke(ASK).content, whole)
    sample = lambda seed: ChatOllama(**{**SERVER, "temperature": 1}, seed=seed).invoke(ASK).content
    equal(sample(5), sample(5))


@check
def generate():
    """OllamaLLM: generate, whole and streamed"""
    me = OllamaLLM(**SERVER)
    text = me.invoke(ASK)
    true(text, "no answer")
    equal("".join(me.stream(ASK)), text)


@check
def errors():
    """an unknown model, and an overlong prompt in the words of Ollama"""
    for call, status, words in (
            (lambda: ChatOllama(**{**SERVER, "model": "no-such"}).invoke(ASK), 404, "not found"),
            (lambda: ChatOllama(**SERVER).invoke("word " * 20000), 400, "the input length exceeds the context length")):
        try:
            call()
        except ollama.ResponseError as e:
            true(e.status_code == status and words in e.error, repr(e))
        else:
            true(False, f"nothing raised: {status} {words}")


if __name__ == "__main__":
    raise SystemExit(c.main("langchain-ollama"))
