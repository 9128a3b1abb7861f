/*
 * Fuzzes the OpenAI API with arbitrary bodies for any route, then arbitrary frames. Invariants: a rejected request gets
 * an error object; a stream consists of JSON events and [DONE], a whole answer is one object; the text in the response
 * is that of the frames. The input is a letter for the route, the body, and after a NUL the frames, three bytes each.
 */
#include <assert.h>
#include <float.h>
#include <math.h>

#include "unit/openai_fake.h"
#include "unit/prompt_build.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static json_t *object(const char *p, size_t n)
{
    json_error_t je;
    json_t *o = json_loadb(p ? p : "", n, JSON_ALLOW_NUL, &je);
    assert(json_is_object(o));
    return o;
}

static void is_error(const json_t *o, int status)
{
    const json_t *e = json_object_get(o, "error");
    assert(json_object_size(e) == 4 && json_is_string(json_object_get(e, "message")));
    assert(json_is_string(json_object_get(e, "type")));
    assert(json_integer_value(json_object_get(e, "code")) == status);
}

/* ---- frames ---- */

static struct {
    bool ended[256 + 1]; /* of the first choices; later ones end by themselves */
    size_t n_text;       /* text bytes of choice 0 of line 0 that the response must contain */
    bool failed;
} run;

static const char *const texts[] = {
    "", "a", "\xe2\x82\xac", "\"\\\n", "\x01\x7f", "data: [DONE]\n\n", "</s>", "\xf0\x9f\x8c\x8d"};

static void out(uint32_t line, uint32_t choice, uint8_t a, uint8_t b)
{
    static const struct wire_top top[] = {{SAY_HELLO, -0.5f}, {SAY_END, -1}, {SAY_HALF, -FLT_MAX}, {172, -3}};
    const char *text = texts[b & 7];
    /* not 0: jansson reads no name of a member with a NUL in it */
    uint32_t ids[3] = {1 + (uint32_t)(a + b) % (SAY_N - 1), SAY_HALF, 172}, n = a >> 6;
    struct wire_logprob lp[3];
    struct wire_out o = {.index = choice, .ids = ids, .n_id = n, .text = wire_str_of(text)};
    for (uint32_t i = 0; i < 3; i++)
        lp[i] = (struct wire_logprob){ids[i], b & 64 ? NAN : -(float)b, top, b & 32 ? 4 : i, b};
    o.lp = b & 8 ? lp : NULL;
    o.n_lp = b & 8 ? n : 0;
    o.prompt = b & 16;
    o.silent = o.prompt && b & 128;
    if (o.silent)
        o.text = wire_str_of("");
    const json_t *echo = json_object_get(fake_call.line[0], "echo");
    if (line == 0 && choice == 0 && (!o.prompt || json_is_true(echo)))
        run.n_text += o.text.n;
    fake_call.ops->out(&fake_call, line, choice, &o);
}

static void end(uint32_t line, uint32_t choice, uint8_t b)
{
    const struct wire_end w = {.index = choice,
                               .reason = b & 1 ? WIRE_STOP : WIRE_LENGTH,
                               .stop_text = wire_str_of(texts[b >> 1 & 7]),
                               .has_stop_id = b & 16,
                               .stop_id = b,
                               .prompt_tokens = b,
                               .completion_tokens = b};
    fake_call.ops->end(&fake_call, line, choice, &w);
}

static void frames(const uint8_t *p, size_t n)
{
    static const uint32_t ids[] = {1, SAY_HALF, SAY_END};
    uint32_t n_all = fake_call.n * fake_call.n_line, n_known = n_all < 256 ? n_all : 256;
    struct prompt_body body;
    const struct wire_prompt q = prompt_build(&body, ids, 3);
    memset(&run, 0, sizeof run);
    if (n && p[0] & 1)
        for (uint32_t i = 0; i < fake_call.n_line; i++)
            fake_call.ops->prompt(&fake_call, i, &q);
    free(body.p);
    for (; n >= 3; p += 3, n -= 3) {
        uint32_t i = p[0] % n_known, line = i / fake_call.n, choice = i % fake_call.n;
        if ((p[1] & 15) == 0) {
            fake_flush();
        } else if ((p[1] & 63) == 1) {
            run.failed = true;
            fake_fail(line, p[2] & 1 ? 400 : 500, p[2] & 2 ? 0.5 : 0, texts[p[2] >> 3 & 7]);
            return;
        } else if (run.ended[i]) {
            continue;
        } else if ((p[1] & 15) == 2) {
            run.ended[i] = true;
            end(line, choice, p[2]);
        } else {
            out(line, choice, p[1], p[2]);
        }
    }
    for (uint32_t i = 0; i < n_all; i++)
        if (i >= n_known || !run.ended[i])
            end(i / fake_call.n, i % fake_call.n, (uint8_t)i);
    fake_done();
}

/* ---- answers ---- */

static size_t text_of(const json_t *choice)
{
    static const char *const in[] = {"delta", "message"};
    const json_t *text = json_object_get(choice, "text");
    for (size_t i = 0; i < 2 && !text; i++)
        text = json_object_get(json_object_get(choice, in[i]), "content");
    return json_integer_value(json_object_get(choice, "index")) == 0 ? json_string_length(text) : 0;
}

/* Checks that events cover the whole stream; *n_text: text bytes of choice 0. */
static void stream(const struct http_request *r, size_t *n_text)
{
    const char *p = r->out.p, *stop = p + r->out.n;
    bool error = false;
    while (p < stop) {
        const char *e = memmem(p, (size_t)(stop - p), "\n\n", 2);
        assert(e && !strncmp(p, "data: ", 6) && !memchr(p, '\n', (size_t)(e - p)));
        if (e - p == 12 && !memcmp(p + 6, "[DONE]", 6)) {
            assert(e + 2 == stop && error == run.failed);
            return;
        }
        assert(!error);
        json_t *o = object(p + 6, (size_t)(e - p) - 6);
        error = json_object_get(o, "error") != NULL;
        *n_text += text_of(json_array_get(json_object_get(o, "choices"), 0));
        json_decref(o);
        p = e + 2;
    }
    assert(!"no end mark");
}

static void answer(const struct http_request *r, bool called)
{
    size_t n_text = 0;
    assert(r->over);
    if (!strncmp(r->type, "text/event-stream", 17)) {
        assert(called && r->status == 200);
        stream(r, &n_text);
        assert(n_text == run.n_text || (run.failed && n_text < run.n_text)); /* a prompt that waits for its token */
        return;
    }
    json_t *o = object(r->out.p, r->out.n);
    if (r->status != 200) {
        assert(r->status == 400 || r->status == 404 || r->status == 413 || (called && run.failed));
        is_error(o, r->status);
    } else if (called) {
        n_text = text_of(json_array_get(json_object_get(o, "choices"), 0));
        assert(!run.failed && n_text == run.n_text);
        assert(json_array_size(json_object_get(o, "choices")) > 0 && json_is_object(json_object_get(o, "usage")));
    }
    json_decref(o);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const paths[] = {"/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"};
    struct http_request r = {0};
    if (!server.model.text)
        fake_open(&server);
    if (size < 2)
        return 0;
    size--;
    const uint8_t *nul = memchr(data + 1, 0, size);
    r.n_body = nul ? (size_t)(nul - data - 1) : size;
    char *body = malloc(r.n_body + 1); /* its own allocation, so that an overrun is detected */
    memcpy(body, data + 1, r.n_body);
    body[r.n_body] = 0;
    r.request_id = data[0] & 8 ? "h-1" : NULL;
    server.n_log = 0;
    fake_ask(&server, &r, "POST", paths[data[0] & 3], body);
    bool called = fake_call.state != NULL;
    if (called)
        frames(nul ? nul + 1 : data, nul ? size - r.n_body - 1 : 0);
    answer(&r, called);
    fake_free(&r);
    free(body);
    return 0;
}
