"""LangChain: ChatOpenAI and OpenAI of langchain-openai."""

import asyncio

import openai
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI, OpenAI
from langchain_openai.chat_models.base import OpenAIModelNotFoundError

import check as c
from check import check, equal, raises, true

MODEL = c.model()
SERVER = {"model": MODEL, "base_url": c.URL + "/v1", "api_key": "none", "max_retries": 0, "temperature": 0, "max_tokens": 16}
ASK = "Name a colour."


def chat_model(**more):
    return ChatOpenAI(**{**SERVER, **more})


@check
def chat():
    """invoke, stream, batch: the same text, with its usage"""
    a = chat_model().invoke(ASK)
    true(a.content and a.usage_metadata["input_tokens"] > 0 and a.usage_metadata["output_tokens"] <= 16, a)
    true(a.response_metadata["finish_reason"] in ("stop", "length") and a.response_metadata["model_name"] == MODEL, a)
    parts = list(chat_model(stream_usage=True).stream(ASK))
    equal("".join(x.content for x in parts), a.content)
    equal(sum(x.usage_metadata["output_tokens"] for x in parts if x.usage_metadata), a.usage_metadata["output_tokens"])
    equal([x.content for x in chat_model().batch([ASK] * 4)], [a.content] * 4)


@check
def history():
    """a conversation, with a response as it was received"""
    first = chat_model().invoke(ASK)
    talk = [SystemMessage("Be brief."), HumanMessage(ASK), first, HumanMessage("Another one.")]
    a = chat_model().invoke(talk)
    b = chat_model().invoke([*talk[:2], AIMessage(first.content), talk[3]])
    equal((a.content, a.usage_metadata["input_tokens"]), (b.content, b.usage_metadata["input_tokens"]))


@check
def chain():
    """a chain of prompt, model and parser, also asynchronous and with stop"""
    me = ChatPromptTemplate.from_messages([("system", "Be brief."), ("human", "Say {word}.")]) | chat_model() | StrOutputParser()
    text = me.invoke({"word": "hello"})
    true(text, "no answer")
    equal(asyncio.run(me.ainvoke({"word": "hello"})), text)
    whole = chat_model().invoke(ASK).content
    equal(chat_model().bind(stop=[whole[4:7]]).invoke(ASK).content, whole[:whole.index(whole[4:7])])


@check
def logprobs():
    """logprobs: their bytes are the content"""
    a = chat_model(max_tokens=60).bind(logprobs=True, top_logprobs=2).invoke("Say hi.")
    entries = a.response_metadata["logprobs"]["content"]
    equal(bytes(b for t in entries for b in t["bytes"]).decode(), a.content)
    equal(a.response_metadata["finish_reason"], "stop")


@check
def completion():
    """the model OpenAI: text completion, whole and streamed"""
    me = OpenAI(**SERVER)
    text = me.invoke("The capital of France is")
    true("Paris" in text, text)
    equal("".join(me.stream("The capital of France is")), text)


@check
def overflow():
    """an overlong prompt raises the error ContextOverflowError"""
    for call in (lambda: chat_model().invoke("word " * 20000), lambda: list(chat_model().stream("word " * 20000)),
                 lambda: chat_model(max_tokens=10 ** 6).invoke(ASK)):
        try:
            call()
        except ContextOverflowError as e:
            true(isinstance(e, openai.BadRequestError) and e.code == "context_length_exceeded", repr(e))
        else:
            true(False, "nothing raised")


@check
def errors():
    """other errors: an unknown model, a value out of range, tools"""
    raises(OpenAIModelNotFoundError, lambda: chat_model(model="no-such").invoke(ASK))
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    for word, call in (("top_p", lambda: chat_model(top_p=5).invoke(ASK)),
                       ("tools", lambda: chat_model().bind(tools=[tool]).invoke(ASK))):
        try:
            call()
        except ContextOverflowError as e:
            true(False, f"taken for an overlong prompt: {e}")
        except openai.BadRequestError as e:
            true(word in str(e), e)
        else:
            true(False, f"nothing raised: {word}")


if __name__ == "__main__":
    raise SystemExit(c.main("langchain"))
