"""instructor in its mode MD_JSON: JSON in a fenced block of a chat answer, validated by a pydantic model. The prompts hold the
answer, since the test's model is small."""

import asyncio

import instructor
import openai
from instructor.core.exceptions import InstructorRetryException
from pydantic import BaseModel

import check as c
from check import check, equal, true

MODEL = c.model()


class Person(BaseModel):
    name: str
    age: int


ASK = [{"role": "user", "content": 'Repeat this block:\n```json\n{"name": "Ada", "age": 36}\n```'},
       {"role": "assistant", "content": '```json\n{"name": "Ada", "age": 36}\n```'},
       {"role": "user", "content": 'Repeat this block:\n```json\n{"name": "Alan", "age": 41}\n```'}]
ALAN = {"name": "Alan", "age": 41}
MORE = {"model": MODEL, "response_model": Person, "messages": ASK, "temperature": 0, "max_tokens": 60}


def client():
    return instructor.from_openai(openai.OpenAI(base_url=c.URL + "/v1", api_key="none", max_retries=0, timeout=120),
                                  mode=instructor.Mode.MD_JSON)


@check
def create():
    """create: an object, and the completion with its usage"""
    equal(client().chat.completions.create(**MORE).model_dump(), ALAN)
    person, whole = client().chat.completions.create_with_completion(**MORE)
    true(person.age == 41 and whole.usage.completion_tokens > 0, whole)


@check
def partial():
    """create_partial: an object that grows while it is streamed"""
    seen = list(client().chat.completions.create_partial(**MORE))
    true(len(seen) > 1, seen)
    equal(seen[-1].model_dump(), ALAN)


@check
def asynchronous():
    """AsyncOpenAI, four at once"""
    async def f():
        me = instructor.from_openai(openai.AsyncOpenAI(base_url=c.URL + "/v1", api_key="none", max_retries=0, timeout=120),
                                    mode=instructor.Mode.MD_JSON)
        return await asyncio.gather(*(me.chat.completions.create(**MORE) for _ in range(4)))
    equal([x.model_dump() for x in asyncio.run(f())], [ALAN] * 4)


@check
def errors():
    """an overlong prompt is not retried into success; other modes are refused by the server with the field's name"""
    for mode, more, word in ((instructor.Mode.MD_JSON, {"messages": [{"role": "user", "content": "word " * 20000}]},
                              "maximum context length is"),
                             (instructor.Mode.TOOLS, {}, "tool"), (instructor.Mode.JSON, {}, "response_format")):
        me = instructor.from_openai(openai.OpenAI(base_url=c.URL + "/v1", api_key="none", max_retries=0, timeout=120), mode=mode)
        try:
            me.chat.completions.create(**{**MORE, **more}, max_retries=1)
        except (InstructorRetryException, openai.BadRequestError) as e:
            true(word in str(e), f"{mode}: {e}")
        else:
            true(False, f"{mode}: nothing raised")


if __name__ == "__main__":
    raise SystemExit(c.main("instructor"))
