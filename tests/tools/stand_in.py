#!/usr/bin/env python3
"""Stands for any service under the supervisor: copied under the service's name, it writes down how it was started, says
that it is ready, and ends at SIGTERM. Files in the folder $STAND change that: fail-NAME (it ends at once with the status
in it), stuck-NAME (SIGTERM does not end it), slow-NAME (it is never ready), lines-NAME (it says so many lines more),
addresses-NAME (lines of its readiness message)."""
import json
import os
import signal
import sys
import time

program, args, folder = os.path.basename(sys.argv[0]), sys.argv[1:], os.environ["STAND"]
name = args[args.index("--name") + 1] if "--name" in args else program


def note(file, what):
    with open(f"{folder}/{file}", "a") as f:
        f.write(json.dumps(what) + "\n")


def term(*_):
    note("ends", name)
    if not os.path.exists(f"{folder}/stuck-{name}"):
        sys.exit(0)


listen = os.environ.get("LISTEN_FDNAMES", "") if os.environ.get("LISTEN_PID") == str(os.getpid()) else ""
signal.signal(signal.SIGTERM, term)
note("starts", {"name": name, "program": program, "args": args, "cpus": sorted(os.sched_getaffinity(0)),
                "fds": sorted(map(int, os.listdir("/proc/self/fd"))), "listen": listen, "pid": os.getpid(), "parent": os.getppid()})
if os.path.exists(f"{folder}/fail-{name}"):
    print(f"{program}: no model here", file=sys.stderr)
    sys.exit(int(open(f"{folder}/fail-{name}").read()))
print(f"{name} says hello", file=sys.stderr, flush=True)
if os.path.exists(f"{folder}/lines-{name}"):
    for i in range(int(open(f"{folder}/lines-{name}").read())):
        print(f"{name} line {i} " + 100 * "x", file=sys.stderr, flush=True)
if not os.path.exists(f"{folder}/slow-{name}"):
    addresses = ""
    if os.path.exists(f"{folder}/addresses-{name}"):
        addresses = open(f"{folder}/addresses-{name}").read()
    os.write(int(args[args.index("--ready-fd") + 1]), f"ready\n{addresses}".encode())
while True:
    time.sleep(60)
