/*
 * Responses of the Ollama dialect without HTTP: from frames to NDJSON, and model info. Names and order of fields are
 * those of Ollama's api/types.go and docs/api.md (August 2026), formats of parameter counts those of its
 * format_test.go, times those of date(1).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "api/ollama.h"
#include "unit/ollama_model.h"
#include "unit/prompt_build.h"

static struct ollama_answer *answer(bool chat, bool stream, bool raw)
{
    struct err e;
    struct ollama_answer *a;
    const struct ollama_request ask = {.kind = OLLAMA_RUN, .chat = chat, .stream = stream, .raw = raw};
    assert_int_equal(ollama_answer_new(&e, &a, &ask, "m\"1", model.text), 0);
    return a;
}

/* Parses exactly one line, which ends with a line feed if streamed. */
static json_t *line_of(const char *p, size_t n, bool stream)
{
    json_error_t je;
    assert_true(n > 2);
    assert_int_equal(p[n - 1] == '\n', stream);
    assert_null(memchr(p, '\n', n - 1));
    json_t *o = json_loadb(p, n, 0, &je);
    if (!o)
        fail_msg("%.*s: %s", (int)n, p, je.text);
    return o;
}

static bool is_time(const char *s)
{
    int n = 0;
    unsigned y, mo, d, h, mi, sec, ns;
    return sscanf(s, "%4u-%2u-%2uT%2u:%2u:%2u.%9uZ%n", &y, &mo, &d, &h, &mi, &sec, &ns, &n) == 7 && n == 30 && !s[n] &&
           y >= 2024;
}

static json_t *piece(struct ollama_answer *a, const char *text, const uint32_t *ids, uint32_t n_id)
{
    struct err e;
    const char *p;
    size_t n;
    const struct wire_out o = {.ids = ids, .n_id = n_id, .text = wire_str_of(text)};
    assert_int_equal(ollama_answer_piece(&e, a, &p, &n, &o), 0);
    return n ? line_of(p, n, true) : NULL;
}

static const struct ollama_times times = {1000, 200, 300, 400, 26, 8, 3};

static json_t *last(struct ollama_answer *a, bool stream)
{
    struct err e;
    const char *p;
    size_t n;
    assert_int_equal(ollama_answer_last(&e, a, &p, &n, "stop", &times), 0);
    return line_of(p, n, stream);
}

static const char *str(const json_t *o, const char *key)
{
    return json_string_value(json_object_get(o, key));
}

#define METRICS                                                                                                        \
    "total_duration load_duration prompt_eval_count prompt_eval_cached_count prompt_eval_duration eval_count "         \
    "eval_duration"

static void expect_metrics(const json_t *o)
{
    static const struct {
        const char *key;
        int value;
    } of[] = {{"total_duration", 1000},        {"load_duration", 200},        {"prompt_eval_count", 26},
              {"prompt_eval_cached_count", 8}, {"prompt_eval_duration", 300}, {"eval_count", 3},
              {"eval_duration", 400}};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        assert_true(json_is_integer(json_object_get(o, of[i].key)));
        assert_int_equal(json_integer_value(json_object_get(o, of[i].key)), of[i].value);
    }
}

static void generate_streams_ndjson(void **state)
{
    struct err e;
    struct ollama_answer *a = answer(false, true, false);
    const uint32_t prompt[] = {1, 2, 3}, ids[] = {7, 8};
    (void)state;
    struct prompt_body body;
    const struct wire_prompt q = prompt_build(&body, prompt, 3);
    assert_int_equal(ollama_answer_prompt(&e, a, &q), 0);
    free(body.p);
    json_t *o = piece(a, "a \"b\"\n\xc3\xa9\x01", ids, 1);
    expect_keys(o, "model created_at response done");
    assert_string_equal(str(o, "model"), "m\"1");
    assert_true(is_time(str(o, "created_at")));
    assert_string_equal(str(o, "response"), "a \"b\"\n\xc3\xa9\x01");
    assert_true(json_is_false(json_object_get(o, "done")));
    json_decref(o);
    assert_null(piece(a, "", ids + 1, 1)); /* held back */
    o = last(a, true);
    expect_keys(o, "model created_at response done done_reason context " METRICS);
    assert_string_equal(str(o, "response"), "");
    assert_string_equal(str(o, "done_reason"), "stop");
    assert_true(json_is_true(json_object_get(o, "done")));
    expect_metrics(o);
    json_t *want = json_pack("[i,i,i,i,i]", 1, 2, 3, 7, 8);
    assert_true(json_equal(json_object_get(o, "context"), want));
    json_decref(want);
    json_decref(o);
    ollama_answer_free(a);
}

/* The body of a prompt is decoded only if the response returns its ids. */
static void the_prompt_body_is_decoded_for_context_only(void **state)
{
    struct err e;
    static const uint8_t bad[] = "no frames";
    const struct wire_prompt q = {.n_prompt = 3, .body = {bad, sizeof bad}};
    (void)state;
    struct ollama_answer *chat = answer(true, true, false), *generate = answer(false, true, false);
    assert_int_equal(ollama_answer_prompt(&e, chat, &q), 0);
    assert_int_equal(ollama_answer_prompt(&e, generate, &q), ERR_PROTO);
    ollama_answer_free(chat);
    ollama_answer_free(generate);
}

static void chat_streams_ndjson(void **state)
{
    const uint32_t ids[] = {7};
    struct ollama_answer *a = answer(true, true, false);
    (void)state;
    json_t *o = piece(a, "Hi", ids, 1);
    expect_keys(o, "model created_at message done");
    expect_keys(json_object_get(o, "message"), "role content");
    assert_string_equal(str(json_object_get(o, "message"), "role"), "assistant");
    assert_string_equal(str(json_object_get(o, "message"), "content"), "Hi");
    json_decref(o);
    o = last(a, true);
    expect_keys(o, "model created_at message done done_reason " METRICS);
    assert_string_equal(str(json_object_get(o, "message"), "content"), "");
    expect_metrics(o);
    json_decref(o);
    ollama_answer_free(a);
}

/* raw returns no context; an unstreamed response is one object with all of the text and no line feed. */
static void an_unstreamed_response_is_one_object(void **state)
{
    const uint32_t ids[] = {7};
    struct ollama_answer *a = answer(false, false, true);
    (void)state;
    assert_null(piece(a, "One\t", ids, 1));
    assert_null(piece(a, "two", ids, 1));
    json_t *o = last(a, false);
    expect_keys(o, "model created_at response done done_reason " METRICS);
    assert_string_equal(str(o, "response"), "One\ttwo");
    json_decref(o);
    ollama_answer_free(a);
    a = answer(true, false, false);
    assert_null(piece(a, "One ", ids, 1));
    assert_null(piece(a, "two", ids, 1));
    o = last(a, false);
    assert_string_equal(str(json_object_get(o, "message"), "content"), "One two");
    json_decref(o);
    ollama_answer_free(a);
}

/* An id of one byte that is not UTF-8 by itself: a byte-level vocabulary has nearly all 256. */
static uint32_t half_character(uint8_t *byte)
{
    for (uint32_t id = 0; id < text_n_token(model.text); id++) {
        size_t n = 0;
        const uint8_t *p = text_piece(model.text, id, &n);
        *byte = n == 1 ? p[0] : 0;
        if (*byte >= 0x80)
            return id;
    }
    fail();
    return 0;
}

static void logprobs_are_written_per_token(void **state)
{
    struct err e;
    struct text_ids hello = {0};
    const char *p;
    size_t n;
    uint8_t byte;
    (void)state;
    assert_int_equal(text_encode(&e, model.text, &hello, "Hello", 5, 0), 0);
    assert_int_equal(hello.n, 1);
    const struct wire_top top[] = {{hello.ids[0], -0.25f}, {half_character(&byte), -1.5f}};
    const struct wire_logprob lp[] = {{hello.ids[0], -0.25f, top, 2, 1}};
    const struct wire_out o = {.ids = hello.ids, .n_id = 1, .text = wire_str_of("Hello"), .lp = lp, .n_lp = 1};
    for (int stream = 0; stream < 2; stream++) {
        struct ollama_answer *a = answer(false, stream, true);
        json_t *x;
        if (stream) {
            assert_int_equal(ollama_answer_piece(&e, a, &p, &n, &o), 0);
            x = line_of(p, n, true);
        } else {
            assert_int_equal(ollama_answer_piece(&e, a, &p, &n, &o), 0);
            assert_int_equal(ollama_answer_piece(&e, a, &p, &n, &o), 0);
            x = last(a, false);
        }
        const json_t *list = json_object_get(x, "logprobs"), *one = json_array_get(list, 0);
        assert_int_equal(json_array_size(list), stream ? 1 : 2);
        expect_keys(one, "token logprob bytes top_logprobs");
        assert_string_equal(str(one, "token"), "Hello");
        assert_true(json_real_value(json_object_get(one, "logprob")) == -0.25);
        json_t *want = json_pack("[i,i,i,i,i]", 'H', 'e', 'l', 'l', 'o');
        assert_true(json_equal(json_object_get(one, "bytes"), want));
        json_decref(want);
        const json_t *best = json_object_get(one, "top_logprobs"), *half = json_array_get(best, 1);
        assert_int_equal(json_array_size(best), 2);
        expect_keys(half, "token logprob bytes");
        assert_string_equal(str(half, "token"), "\xef\xbf\xbd");
        assert_int_equal(json_integer_value(json_array_get(json_object_get(half, "bytes"), 0)), byte);
        json_decref(x);
        ollama_answer_free(a);
    }
    text_ids_free(&hello);
}

/* Ollama ends an answer before it adds the end token. */
static void the_end_token_has_no_entry(void **state)
{
    struct err e;
    struct text_ids end = {0};
    const char *p;
    size_t n;
    (void)state;
    assert_int_equal(text_encode(&e, model.text, &end, "<|im_end|>", 10, TEXT_CONTROL), 0);
    assert_int_equal(end.n, 1);
    const struct wire_logprob lp[] = {{end.ids[0], -0.25f, NULL, 0, 1}};
    const struct wire_out o = {.ids = end.ids, .n_id = 1, .lp = lp, .n_lp = 1};
    for (int stream = 0; stream < 2; stream++) {
        struct ollama_answer *a = answer(true, stream, true);
        assert_int_equal(ollama_answer_piece(&e, a, &p, &n, &o), 0);
        assert_int_equal(n, 0);
        json_t *x = last(a, stream);
        assert_null(json_object_get(x, "logprobs"));
        json_decref(x);
        ollama_answer_free(a);
    }
    text_ids_free(&end);
}

/* ---- times ---- */

static struct wire_span span(const char *stage, uint64_t queued, uint64_t start, uint64_t end)
{
    return (struct wire_span){
        .stage = wire_str_of(stage), .host = wire_str_of("h"), .queued_ns = queued, .start_ns = start, .end_ns = end};
}

static void expect_parts(const struct ollama_times *t)
{
    assert_true(t->load_ns + t->prompt_ns + t->eval_ns <= t->total_ns);
}

/* Arrived at 1000, queued to 1500, prompt computed to 2500, first token here at 2600, decoded 2500 to 4000, end
 * received at 4200. */
static void durations_add_up_to_the_total(void **state)
{
    const struct wire_span s[] = {span("prefill", 1100, 1500, 2500), span("decode", 2500, 2500, 4000)};
    struct wire_end w = {.prompt_tokens = 26,
                         .completion_tokens = 9,
                         .cached_tokens = 8,
                         .born_ns = 1050,
                         .first_ns = 2500,
                         .last_ns = 4000,
                         .span = s,
                         .n_span = 2};
    struct ollama_times t;
    (void)state;
    ollama_times(&t, &w, 1000, 2600, 4200);
    assert_int_equal(t.total_ns, 3200);
    assert_int_equal(t.prompt_ns, 1000);
    assert_int_equal(t.load_ns, 600);
    assert_int_equal(t.eval_ns, 1500);
    assert_int_equal(t.n_prompt, 26); /* the whole prompt, including its cached part */
    assert_int_equal(t.n_cached, 8);
    assert_int_equal(t.n_eval, 9);
    w.completion_tokens = 1; /* of one token the time after it: clients divide by it */
    w.last_ns = 2500;
    ollama_times(&t, &w, 1000, 2600, 4200);
    assert_int_equal(t.eval_ns, 1600);
    expect_parts(&t);
    w.completion_tokens = 9;
    /* a worker that reports more than the total: after a retry, or from a host with another clock */
    const struct wire_span far[] = {span("prefill", 0, 0, 900000), span("decode", 0, 0, 0)};
    w.span = far;
    w.last_ns = 800000;
    ollama_times(&t, &w, 1000, 2600, 4200);
    expect_parts(&t);
    assert_int_equal(t.total_ns, 3200);
    /* no token, no stage, no clock at all */
    w = (struct wire_end){.prompt_tokens = 3};
    ollama_times(&t, &w, 1000, 0, 4200);
    expect_parts(&t);
    assert_int_equal(t.eval_ns, 0);
    ollama_times(&t, NULL, 1000, 0, 1700);
    assert_true(t.total_ns == 700 && t.load_ns == 0 && t.n_prompt == 0);
}

static void times_are_written_as_rfc3339(void **state)
{
    char s[OLLAMA_TIME_BYTES];
    (void)state;
    static const struct {
        int64_t s;
        uint32_t ns;
        const char *text;
    } of[] = {
        {0, 0, "1970-01-01T00:00:00.000000000Z"},
        {951782400, 1, "2000-02-29T00:00:00.000000001Z"},
        {1700000000, 123456789, "2023-11-14T22:13:20.123456789Z"},
        {4102444799, 999999999, "2099-12-31T23:59:59.999999999Z"},
        {4107542400, 0, "2100-03-01T00:00:00.000000000Z"},
    };
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        assert_int_equal(ollama_time(s, of[i].s, of[i].ns), 30);
        assert_string_equal(s, of[i].text);
    }
}

/* ---- model info ---- */

static void parameter_counts_are_written_as_ollama_does(void **state)
{
    static const struct {
        uint64_t n;
        const char *text;
    } of[] = {{0, "0"},           {999, "999"},         {1000, "1K"},           {1001, "1K"},
              {1000000, "1M"},    {125000000, "125M"},  {500500000, "500.50M"}, {500550000, "500.55M"},
              {1000000000, "1B"}, {2800000000, "2.8B"}, {2850000000, "2.9B"},   {1000000000000, "1000B"}};
    char s[32];
    (void)state;
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        ollama_human(s, sizeof s, of[i].n);
        assert_string_equal(s, of[i].text);
    }
}

static void tags_and_ps_list_the_served_names(void **state)
{
    static const char *const names[] = {"smollm2", "hub/smollm2:135m", "host:80/x"};
    (void)state;
    json_t *o = ollama_tags(&model, names, 3), *one = json_array_get(json_object_get(o, "models"), 0);
    expect_keys(one, "name model modified_at size digest details capabilities");
    assert_string_equal(str(one, "name"), "smollm2:latest");
    assert_string_equal(str(one, "modified_at"), "2023-11-14T22:13:20.000000000Z");
    expect_keys(json_object_get(one, "details"),
                "parent_model format family families parameter_size quantization_level");
    assert_string_equal(str(json_object_get(one, "details"), "parameter_size"), "134.52M");
    assert_string_equal(str(json_array_get(json_object_get(o, "models"), 1), "model"), "hub/smollm2:135m");
    assert_string_equal(str(json_array_get(json_object_get(o, "models"), 2), "model"), "host:80/x:latest");
    json_decref(o);
    o = ollama_ps(&model, names, 1, 1700000000);
    one = json_array_get(json_object_get(o, "models"), 0);
    expect_keys(one, "name model size digest details expires_at size_vram context_length");
    assert_int_equal(json_integer_value(json_object_get(one, "context_length")), 8192);
    assert_true(strncmp(str(one, "expires_at"), "2316-", 5) == 0); /* `date -u -d @10923372036` */
    json_decref(o);
    o = ollama_ps(&model, names, 0, 1700000000);
    assert_int_equal(json_array_size(json_object_get(o, "models")), 0);
    assert_true(json_is_array(json_object_get(o, "models")));
    json_decref(o);
}

/* The expected metadata is what gguf-py prints of the default model. */
static void show_returns_the_metadata_of_the_file(void **state)
{
    (void)state;
    json_t *o = ollama_show(&model, false), *info = json_object_get(o, "model_info");
    expect_keys(o, "license modelfile parameters template details model_info capabilities modified_at");
    assert_string_equal(str(o, "license"), "apache-2.0");
    assert_string_equal(str(o, "template"), model.chat_template);
    assert_non_null(strstr(str(o, "parameters"), "num_ctx                        8192"));
    assert_non_null(strstr(str(o, "parameters"), "\nstop                           \"<|im_end|>\""));
    assert_null(strchr(strstr(str(o, "modelfile"), "FROM "), '/')); /* a name without its directory */
    assert_string_equal(str(info, "general.architecture"), "llama");
    assert_int_equal(json_integer_value(json_object_get(info, "general.parameter_count")), 134515008);
    assert_int_equal(json_integer_value(json_object_get(info, "llama.context_length")), 8192);
    assert_int_equal(json_integer_value(json_object_get(info, "llama.block_count")), 30);
    assert_true(json_real_value(json_object_get(info, "llama.rope.freq_base")) == 100000);
    assert_true(json_is_false(json_object_get(info, "tokenizer.ggml.add_bos_token")));
    assert_true(json_is_null(json_object_get(info, "tokenizer.ggml.tokens")));
    assert_null(json_object_get(info, "general.name"));
    assert_null(json_object_get(info, "tokenizer.chat_template"));
    json_decref(o);
    o = ollama_show(&model, true);
    info = json_object_get(o, "model_info");
    assert_int_equal(json_array_size(json_object_get(info, "tokenizer.ggml.tokens")), 49152);
    assert_int_equal(json_array_size(json_object_get(info, "tokenizer.ggml.token_type")), 49152);
    assert_int_equal(json_array_size(json_object_get(o, "tensors")), 272);
    json_decref(o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(generate_streams_ndjson),
        cmocka_unit_test(the_prompt_body_is_decoded_for_context_only),
        cmocka_unit_test(chat_streams_ndjson),
        cmocka_unit_test(an_unstreamed_response_is_one_object),
        cmocka_unit_test(logprobs_are_written_per_token),
        cmocka_unit_test(the_end_token_has_no_entry),
        cmocka_unit_test(durations_add_up_to_the_total),
        cmocka_unit_test(times_are_written_as_rfc3339),
        cmocka_unit_test(parameter_counts_are_written_as_ollama_does),
        cmocka_unit_test(tags_and_ps_list_the_served_names),
        cmocka_unit_test(show_returns_the_metadata_of_the_file),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}
