#!/usr/bin/env python3
"""Stand-in for any service of the supervisor, copied under the service's name. It records how it was started, reports that it
is ready, and exits at SIGTERM. Files in the folder $STAND change this: fail-NAME (it exits at once with the status in the
file), stuck-NAME (it ignores SIGTERM), slow-NAME (it never reports ready), lines-NAME (it logs this number of extra lines),
addresses-NAME (additional lines of its readiness message)."""
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
print(f"{name} prints hello", file=sys.stderr, flush=True)
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
