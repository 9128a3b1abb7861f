#!/usr/bin/env python3
"""Stands for a server of the OpenAI API: answers after delays that are known, so that what a load generator measures can
be compared with them. Prints its port, and at the end (SIGTERM) a line of JSON with what it saw.

  --ttft S --itl S      seconds to the first token and between tokens; --slow-every N: of each Nth token ten times --itl
  --fault KIND[:N]      of each Nth request (every one): status, event, cut-early, cut, no-done, garbage, empty, hang, reset
  --burst N             N tokens in one write
  --split               every event in two writes
  --no-usage, --no-tokenize, --dialect llama (its /tokenize, no root and a final chunk of its own)
  --loading S           /health is 503 so long
  --window N            max_model_len of its model (4096)
  --once                a connection takes one request: it is closed when the next has come"""
import argparse
import asyncio
import json
import signal
import sys
import time

arg = argparse.ArgumentParser()
arg.add_argument("--ttft", type=float, default=0.0)
arg.add_argument("--itl", type=float, default=0.0)
arg.add_argument("--slow-every", type=int, default=0)
arg.add_argument("--fault", default="")
arg.add_argument("--burst", type=int, default=1)
arg.add_argument("--split", action="store_true")
arg.add_argument("--no-usage", action="store_true")
arg.add_argument("--no-tokenize", action="store_true")
arg.add_argument("--dialect", default="vllm")
arg.add_argument("--window", type=int, default=4096)
arg.add_argument("--once", action="store_true")
arg.add_argument("--loading", type=float, default=0.0)
arg = arg.parse_args()
fault, _, every = arg.fault.partition(":")
every = int(every or 1)
began = time.monotonic()
seen = {"requests": [], "at_once": 0, "connections": 0, "tokenized": 0}
now = 0


def once(pairs):
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a field is there twice")
    return dict(pairs)


def count(prompt):
    return len(prompt) if isinstance(prompt, list) else len(prompt.split())


def reply(status, body):
    body = json.dumps(body).encode()
    return (f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n").encode() + body


def chunk(data):
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(data):
    return b"data: " + json.dumps(data).encode() + b"\n\n"


async def send(writer, data):
    if arg.split:
        writer.write(chunk(data[:9]))
        await writer.drain()
        await asyncio.sleep(0.001)
        data = data[9:]
    writer.write(chunk(data))
    await writer.drain()


async def answer(writer, ask, chat, number):
    """Tokens leave at times that were fixed when the request came, so that no delay adds to the next."""
    broken = fault if fault and number % every == 0 else ""
    n = ask.get("max_completion_tokens" if chat else "max_tokens", 16)
    if broken == "status":
        writer.write(reply(503, {"error": {"message": "try again later", "code": 503}}))
        return True
    if broken == "reset":
        return False
    start = time.monotonic()
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
    if broken == "cut-early":
        await asyncio.sleep(0.05)  # it has left
        return False
    at, waiting = start + arg.ttft, b""
    for i in range(n):
        if i:
            at += arg.itl * (10 if arg.slow_every and i % arg.slow_every == 0 else 1)
        choice = {"index": 0, "finish_reason": "length" if i == n - 1 else None}
        text = f" \"{i}\"\\ é\n"
        if chat:
            choice["delta"] = {"role": "assistant", "content": text} if i == 0 else {"content": text}
        else:
            choice["text"] = text
        waiting += event({"id": "x", "object": "chunk", "model": "stand-in", "choices": [choice], "usage": None})
        if (i + 1) % arg.burst and i < n - 1:
            continue
        await asyncio.sleep(max(0, at - time.monotonic()))
        if broken and i >= n // 2:
            if broken == "event":
                await send(writer, event({"error": {"message": "the engine has died", "code": 500}}) + b"data: [DONE]\n\n")
                writer.write(b"0\r\n\r\n")
                return True
            if broken == "cut":
                return False
            if broken == "garbage":
                await send(writer, b"data: {\"choices\": [oh no\n\n")
                writer.write(b"0\r\n\r\n")
                return True
            if broken == "hang":
                await asyncio.sleep(3600)
        if broken != "empty":
            await send(writer, waiting)
        waiting = b""
    if not arg.no_usage:
        usage = {"prompt_tokens": ask["n_prompt"], "completion_tokens": n, "total_tokens": ask["n_prompt"] + n}
        waiting += event({"id": "x", "choices": [], "usage": usage})
    if broken != "no-done":
        waiting += b": bye\n\ndata: [DONE]\n\n"
    await send(writer, waiting or b": nothing\n\n")
    writer.write(b"0\r\n\r\n")
    return True


def tokenize(ask):
    seen["tokenized"] += 1
    text = ask.get("content" if arg.dialect == "llama" else "prompt")
    if "messages" in ask:  # its template has three tokens
        text = "<a> <b> <c> " + " ".join(m["content"] for m in ask["messages"])
    ids = [1000 + sum(word.encode()) % 5000 for word in text.split()]
    return reply(200, {"tokens": ids, "count": len(ids)})


async def serve(reader, writer):
    global now
    seen["connections"] += 1
    answered = 0
    try:
        while line := await reader.readline():
            method, path, _ = line.decode().split()
            headers = {}
            while (line := await reader.readline()).strip():
                name, _, value = line.decode().partition(":")
                headers[name.lower()] = value.strip()
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            try:
                ask = json.loads(body, object_pairs_hook=once) if body else {}
            except ValueError as why:
                writer.write(reply(400, {"error": {"message": str(why), "code": 400}}))
                await writer.drain()
                continue
            good = True
            if path == "/health":
                writer.write(reply(503 if time.monotonic() < began + arg.loading else 200, {}))
            elif path == "/v1/models":
                model = {"id": "org/stand-in", "object": "model", "max_model_len": arg.window}
                writer.write(reply(200, {"object": "list", "data": [model]}))
            elif path == "/tokenize" and not arg.no_tokenize:
                writer.write(tokenize(ask))
            elif path in ("/v1/completions", "/v1/chat/completions"):
                if arg.once and answered:
                    writer.transport.abort()
                    return
                answered += 1
                chat = "chat" in path
                prompt = ask["messages"][-1]["content"] if chat else ask["prompt"]
                ask["n_prompt"] = count(prompt)
                seen["requests"].append({"at": time.monotonic(), "headers": headers, **ask})
                now += 1
                seen["at_once"] = max(seen["at_once"], now)
                good = await answer(writer, ask, chat, len(seen["requests"]))
                now -= 1
            else:
                writer.write(reply(404, {"error": {"message": "no such route"}}))
            await writer.drain()
            if not good:
                writer.transport.abort()
                return
    except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
        pass
    finally:
        writer.close()


async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=1 << 26, backlog=4096)
    end = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, end.set)
    print(server.sockets[0].getsockname()[1], flush=True)
    await end.wait()
    json.dump(seen, sys.stdout)


asyncio.run(main())
