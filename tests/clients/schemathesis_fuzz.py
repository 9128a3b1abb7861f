"""schemathesis with /openapi.json: generated valid and invalid requests to every operation. The server does not crash, and
returns no status, header or schema that the description lacks. The server uses the fake engine, so that answers cost nothing,
and requires a key, so that schemathesis also tests requests without one.

Excluded checks, and why:
  positive_data_acceptance  the description cannot express all constraints: min_tokens is below max_tokens, ids are in the
                            vocabulary, the model has that name, the prompt fits the context length
  missing_required_header, use_after_free, ensure_resource_availability, object_level_authorization: there are no such headers
                            or resources"""

import os
import subprocess
import sys
import tempfile

import check as c
from check import check, equal, true

URL = c.need(os.environ.get("PHASEPIPE_FUZZ"), "PHASEPIPE_FUZZ: a server to fuzz")
CHECKS = ("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_headers_conformance",
          "response_schema_conformance", "unsupported_method", "allow_header_conformance", "ignored_auth",
          "negative_data_rejection")


def fuzz(*options):
    with tempfile.TemporaryDirectory() as folder:
        cmd = [os.path.join(os.path.dirname(sys.executable), "schemathesis"), "run", URL + "/openapi.json", "-H",
               f"Authorization: Bearer {c.KEY}", "--request-timeout", "60", "--output-truncate", "false",
               "--report-dir", folder, "--seed", "7", "--warnings", "off", "--suppress-health-check", "all",
               "--generation-database", "none", "--no-color", *options]
        run = subprocess.run(cmd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=570, cwd=folder)
    if run.returncode != 0 and os.environ.get("CHECK_TRACE"):
        print(run.stdout)
    tail = run.stdout[run.stdout.find("FAILURES"):] if "FAILURES" in run.stdout else run.stdout[-1500:]
    true(run.returncode == 0, f"exit {run.returncode}: {tail[:1500]}")
    return next((x.strip() for x in run.stdout.splitlines() if "generated" in x), "")


@check
def described():
    """the description is valid and has all paths"""
    d = c.get("/openapi.json", url=URL)
    true(d["openapi"].startswith("3."), d["openapi"])
    paths = {"/v1/models", "/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize", "/tokenizer_info", "/health",
             "/ping", "/version", "/load", "/metrics"}
    equal(paths - set(d["paths"]), set(), "paths that are missing")


@check
def right_and_wrong():
    """all operations, valid and invalid requests"""
    return fuzz("--checks", ",".join(CHECKS), "--max-examples", "60", "--phases", "examples,coverage,fuzzing")


@check
def wrong_types():
    """invalid requests are rejected"""
    return fuzz("--checks", "negative_data_rejection,not_a_server_error", "--mode", "negative", "--max-examples", "40",
                "--phases", "fuzzing")


@check
def alive():
    """afterwards nothing runs, and the server answers"""
    c.until(lambda: c.http("/load", url=URL, headers={"Authorization": f"Bearer {c.KEY}"})[2].replace(" ", "") ==
            '{"server_load":0}', 10, "nothing runs")
    status, _, _ = c.http("/v1/completions", {"prompt": "a", "max_tokens": 1}, url=URL,
                          headers={"Authorization": f"Bearer {c.KEY}"})
    equal(status, 200)


if __name__ == "__main__":
    sys.exit(c.main("schemathesis"))
