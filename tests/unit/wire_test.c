#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <sodium.h>
#include <stdio.h>
#include <unistd.h>

#include "wire/wire.h"

#include "unit/asserts.h"
#include "unit/wire_golden.h"

/* SHA-256 of wire_schema(). A failure means that the table has changed: raise WIRE_VERSION, then update the hash. */
#define SCHEMA_VERSION 7
#define SCHEMA_SHA256 "0c3d242bc042937ae605b30813dc0a0b5bba9942d65e8e8b5c534bb345755292"

static void the_schema_changes_only_with_its_version(void **state)
{
    (void)state;
    uint8_t hash[32];
    char hex[65];
    const char *text = wire_schema();
    crypto_hash_sha256(hash, (const uint8_t *)text, strlen(text));
    sodium_bin2hex(hex, sizeof hex, hash, sizeof hash);
    assert_int_equal(WIRE_VERSION, SCHEMA_VERSION);
    assert_string_equal(hex, SCHEMA_SHA256);
}

static char *file_text(const char *path)
{
    FILE *f = fopen(path, "r");
    if (!f)
        fail_msg("%s: %s (tests run in the root of the sources)", path, strerror(errno));
    char *text = calloc(1, 1 << 20);
    size_t n = fread(text, 1, (1 << 20) - 1, f);
    fclose(f);
    text[n] = 0;
    return text;
}

static void the_schema_equals_its_documentation(void **state)
{
    (void)state;
    char *doc = file_text("docs/protocol.md"), *text = strdup(wire_schema()), *at = text;
    for (char *line; (line = strsep(&at, "\n"));)
        assert_in(doc, line);
    free(text);
    free(doc);
}

/* The bytes of the example in docs/protocol.md: the hex digits before each '#' of its block. */
static size_t doc_example(uint8_t *out, size_t max)
{
    char *doc = file_text("docs/protocol.md");
    char *at = strstr(doc, "```hex\n");
    assert_non_null(at);
    at += 7;
    char *end = strstr(at, "```");
    size_t n = 0;
    while (at < end) {
        char *stop = strchr(at, '#');
        for (; at < stop; at++) {
            if (*at == ' ')
                continue;
            char two[3] = {at[0], at[1], 0};
            assert_true(n < max);
            out[n++] = (uint8_t)strtoul(two, NULL, 16);
            at++;
        }
        at = strchr(at, '\n') + 1;
    }
    free(doc);
    return n;
}

static void the_documented_example_equals_our_encoding(void **state)
{
    (void)state;
    struct err e = {0};
    uint8_t want[512], got[512];
    size_t n = doc_example(want, sizeof want);
    int fd[2];
    struct wire_writer *w;
    assert_int_equal(pipe(fd), 0);
    OK(wire_writer_new(&e, &w, fd[1], "stdout"));
    struct wire_frame hello = {.kind = WIRE_HELLO, .hello = {.version = WIRE_VERSION, .from = S("tokenize")}};
    struct wire_frame tok = {.kind = WIRE_TOK, .req = {.id = S("a"), .n_id = 3}};
    uint32_t ids[] = {1, 200, 49151};
    tok.req.ids = ids;
    wire_sampling_default(&tok.req.s);
    tok.req.s.max_tokens = 4;
    tok.req.s.temperature = 0.5f;
    struct wire_frame bye = {.kind = WIRE_BYE, .bye = {.from = S("tokenize"), .n_ok = 1}};
    OK(wire_write(&e, w, &hello));
    OK(wire_write(&e, w, &tok));
    OK(wire_write(&e, w, &bye));
    wire_writer_free(w);
    assert_int_equal(read(fd[0], got, sizeof got), n);
    assert_memory_equal(got, want, n);
    close(fd[0]);
    close(fd[1]);
}

static void encoding_equals_another_implementation(void **state)
{
    (void)state;
    struct err e = {0};
    struct golden g[GOLDEN_N];
    golden_frames(g);
    for (int i = 0; i < GOLDEN_N; i++) {
        size_t n, n_want;
        uint8_t *got, *want = golden_bytes(g[i].hex, &n_want);
        OK(wire_encode(&e, &got, &n, &g[i].f));
        n_want -= g[i].f.kind == WIRE_BLK ? 4 : 0;
        assert_int_equal(n, n_want);
        assert_memory_equal(got, want, n);
        free(got);
        free(want);
    }
}

static void frames_of_another_implementation_decode(void **state)
{
    (void)state;
    struct err e = {0};
    struct golden g[GOLDEN_N];
    struct wire_arena *a = wire_arena_new();
    golden_frames(g);
    for (int i = 0; i < GOLDEN_N; i++) {
        struct wire_frame f;
        size_t n, n_again;
        uint8_t *again, *b = golden_bytes(g[i].hex, &n);
        n -= g[i].f.kind == WIRE_BLK ? 4 : 0;
        OK(wire_decode(&e, &f, a, b, n));
        assert_int_equal(f.kind, g[i].f.kind);
        OK(wire_encode(&e, &again, &n_again, &f));
        assert_int_equal(n, n_again);
        assert_memory_equal(again, b, n);
        free(again);
        if (f.kind == WIRE_TOK) {
            const struct wire_req *r = &f.req;
            assert_true(r->seq == (uint64_t)1 << 40 && r->index == 1 && r->n_id == 8 && r->ids[7] == UINT32_MAX);
            assert_true(r->s.seed == UINT64_MAX && r->s.top_p == 0.75f && r->s.presence_penalty == -0.5f);
            assert_true(r->s.typical_p == 0.625f && r->s.penalty_last_n == 33);
            assert_true(r->s.n_stop == 2 && r->s.stop[1].n == 3 && r->s.bias[1].id == 70000 && r->s.echo);
            assert_true(r->priority == -3 && r->n_span == 1 && r->span[0].bytes == 90 && r->extra.n_pair == 1);
        } else if (f.kind == WIRE_KV) {
            assert_true(isnan(f.kv.prompt[0].logprob) && f.kv.prompt[1].logprob == -1);
            assert_true(f.kv.has_first && f.kv.first.n_top == 2 && f.kv.first.top[1].logprob == -2);
        } else if (f.kind == WIRE_BLK) {
            assert_true(f.blk.n_data == 4 && f.blk.sum == 0x0123456789abcdef);
        } else if (f.kind == WIRE_END) {
            assert_true(f.end.reason == WIRE_STOP && f.end.has_stop_id && f.end.stop_id == 2);
        }
        free(b);
    }
    wire_arena_free(a);
}

static void sampling_defaults_equal_the_contract(void **state)
{
    (void)state;
    struct wire_sampling s;
    wire_sampling_default(&s);
    assert_true(s.temperature == 0 && s.top_k == 0 && s.top_p == 1 && s.min_p == 0 && s.repetition_penalty == 1);
    assert_true(s.typical_p == 1 && s.penalty_last_n == -1);
    assert_true(s.presence_penalty == 0 && s.frequency_penalty == 0 && s.max_tokens == UINT32_MAX);
    assert_true(s.logprobs == -1 && !s.ignore_eos && !s.echo && !s.n_stop && !s.n_bias && !s.n_stop_id && !s.seed);
    assert_true(s.prompt_logprobs == -1 && !s.keep_stop && !s.special_text && !s.n_allowed && !s.n_bad && !s.n_bad_id);
}

/* Bytes written by hand from the msgpack specification. */
static void malformed_frames_are_refused_with_a_reason(void **state)
{
    (void)state;
    static const struct {
        const char *hex, *reason;
    } bad[] = {
        {"", "the bytes end where a value should begin"},
        {"54", "an unsigned integer where a map should be"},
        {"80", "its first field must be k"},
        {"81a17802", "its first field must be k"},
        {"81a16b63", "99 is not a kind of wire version 7"},
        {"81a16ba1", "its declared length"},
        {"81a16b09", "bye frame: field from: it is missing"},
        {"84a16b09a466726f6da161a46e5f6f6b01a76e5f6572726f720000", "1 bytes after its end"},
        {"84a16b09a466726f6da161a466726f6da161a76e5f6572726f7200", "field from: it comes twice (at byte 11"},
        {"84a16b09a16b09a466726f6da161a46e5f6f6b01", "the field k comes twice"},
        {"84a16b09a466726f6d05a46e5f6f6b01a76e5f6572726f7200", "an unsigned integer where a str should be"},
        {"84a16b09a466726f6da10aa46e5f6f6b01a76e5f6572726f7200", "printable ASCII"},
        {"84a16b09a466726f6da161a46e5f6f6bffa76e5f6572726f7200", "a negative integer where"},
        {"83a16b01a776657273696f6e01a466726f6da161", "the stream has wire version 1, this program has 7"},
        {"85a16b02a373657100a5696e64657800a26964a0a3696473dd10000000", "more elements than bytes are left"},
        {"85a16b02a373657100a5696e64657800a26964a0a369647391cf0000000100000000", "4294967296 is outside"},
        {"86a16b02a373657100a5696e64657800a26964a0a36964739001c0", "where a str should be"},
        {"86a16b02a373657100a5696e64657800a26964a0a369647390a178c1", "the field x: byte 0xc1 is not msgpack"},
        {"87a16b02a373657100a5696e64657800a26964a0a369647390a17800a17801", "the field x comes twice"},
        {"86a16b02a373657100a5696e64657800a26964a0a369647390a0c0", "a key must be 1 to 64 bytes"},
        {"86a16b02a373657100a5696e64657800a26964a0a369647390a17891919191919191919191919191919191919100", "too deeply"},
        {"86a16b02a373657100a5696e64657800a26964a0a369647390a764696765737473c40101", "must be 0 or 0 for 0 ids"},
        {"86a16b02a373657100a5696e64657800a26964a0a369647390a5746f705f70ca40000000", "2 is outside 0 to 1"},
        {"86a16b02a373657100a5696e64657800a26964a0a369647390a5746f705f70ca7fc00000", "nan is outside 0 to 1"},
        {"86a16b02a373657100a5696e64657800a26964a0a369647390ab74656d7065726174757265ca7f800000", "inf is outside"},
        {"86a16b02a373657100a5696e64657800a26964a0a369647390ab74656d7065726174757265bf", "its declared length"},
        {"86a16b02a373657100a5696e64657800a26964a0a369647390b272657065746974696f6e5f70656e616c747900", "outside"},
        {"86a16b02a373657100a5696e64657800a26964a0a369647390a86c6f6770726f6273fe", "-2 is outside -1 to 64"},
        {"86a16b02a373657100a5696e64657800a26964a0a369647390a46269617391920100", ""},
        {"86a16b02a373657100a5696e64657800a26964a0a369647390a4626961739191010000", "bias must be an array of 2"},
        /* bad_ids [5], bad_lens [2]; bad_ids [5], bad_lens [0, 1]; lengths whose sum is 2^32 + 1 */
        {"87a16b02a373657100a5696e64657800a26964a0a369647390a76261645f6964739105a86261645f6c656e739102",
         "field bad_lens: its sum is 2, there are 1 bad_ids"},
        {"87a16b02a373657100a5696e64657800a26964a0a369647390a76261645f6964739105a86261645f6c656e73920001",
         "field bad_lens: 0 at index 0, the minimum is 1"},
        {"87a16b02a373657100a5696e64657800a26964a0a369647390a76261645f6964739105a86261645f6c656e7392ceffffffff02",
         "its sum is 4294967297, there are 1"},
        {"86a16b02a373657100a5696e64657800a26964a0a369647390a76261645f6964739105", "its sum is 0, there are 1"},
        {"86a16b02a373657100a5696e64657800a26964a0a369647390a7616c6c6f776564dd00100001", "more elements than bytes"},
        {"86a16b02a373657100a5696e64657800a26964a0a369647390af70726f6d70745f6c6f6770726f627341",
         "65 is outside -1 to 64"},
        {"89a16b04a373657103a5696e64657800a5626c6f636b09a56c6179657204a76e5f6c6179657202a76e5f746f6b656e21",
         "33 is outside 1 to 32"},
        {"83a16b04a464617461c400a373657103", "field data: it must come last"},
        {"86a16b46a373657103a5696e64657802a16e02a86e5f70726f6d707400a4626f6479c400",
         "prompt frame: field index: 2, must be below n, 2"},
        {"85a16b41a776657273696f6e09a4726f6c65a0a46e616d65a0a3696e6300", "field role: 0 bytes, must be 1"},
        {"85a16b41a776657273696f6e09a4726f6c65a4746f6f6ca46e616d65a0a3696e6300",
         ""}, /* session_hello decodes in any version */
        {"82a16b04a464617461c6ffffffff", "4294967295 bytes, the limit is 268435456"},
    };
    struct err e = {0};
    struct wire_arena *a = wire_arena_new();
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct wire_frame f;
        size_t n;
        uint8_t *b = golden_bytes(bad[i].hex, &n);
        int rc = wire_decode(&e, &f, a, b, n);
        if (*bad[i].reason) {
            if (rc != ERR_PROTO)
                fail_msg("%s is accepted (%d)", bad[i].hex, rc);
            assert_in(e.text, bad[i].reason);
        } else {
            OK(rc);
        }
        free(b);
    }
    wire_arena_free(a);
}

static void every_cut_of_a_frame_is_refused(void **state)
{
    (void)state;
    struct err e = {0};
    struct golden g[GOLDEN_N];
    struct wire_arena *a = wire_arena_new();
    golden_frames(g);
    for (int i = 0; i < GOLDEN_N; i++) {
        struct wire_frame f;
        size_t n;
        uint8_t *b = golden_bytes(g[i].hex, &n);
        n -= g[i].f.kind == WIRE_BLK ? 4 : 0;
        for (size_t cut = 0; cut < n; cut++) {
            uint8_t *part = malloc(cut + 1); /* a buffer of its own, so that sanitizers detect a read past it */
            memcpy(part, b, cut);
            assert_int_equal(wire_decode(&e, &f, a, part, cut), ERR_PROTO);
            free(part);
        }
        free(b);
    }
    wire_arena_free(a);
}

static void the_encoder_enforces_the_limits(void **state)
{
    (void)state;
    struct err e = {0};
    uint8_t *out;
    size_t n;
    struct wire_frame f = {.kind = WIRE_TOK};
    wire_sampling_default(&f.req.s);
    f.req.s.temperature = NAN;
    assert_int_equal(wire_encode(&e, &out, &n, &f), ERR_PROTO);
    assert_in(e.text, "tok frame: field temperature: nan is outside 0 to 10000");
    f.req.s.temperature = 0;
    f.req.id.n = WIRE_ID_BYTES_MAX + 1;
    assert_int_equal(wire_encode(&e, &out, &n, &f), ERR_PROTO);
    assert_in(e.text, "1025 bytes, the limit is 1024");
    uint32_t *ids = calloc(WIRE_ALLOWED_MAX + 1, sizeof *ids);
    f.req.id.n = 0;
    f.req.s.allowed = ids;
    f.req.s.n_allowed = WIRE_ALLOWED_MAX + 1;
    assert_int_equal(wire_encode(&e, &out, &n, &f), ERR_PROTO);
    assert_in(e.text, "field allowed: 1048577 elements, the limit is 1048576");
    f.req.s.n_allowed = WIRE_ALLOWED_MAX;
    OK(wire_encode(&e, &out, &n, &f));
    free(out);
    f.req.s.n_allowed = 0;
    f.req.s.bad_ids = ids;
    f.req.s.n_bad_id = 1;
    assert_int_equal(wire_encode(&e, &out, &n, &f), ERR_PROTO);
    assert_in(e.text, "field bad_lens: its sum is 0, there are 1");
    free(ids);
    f = (struct wire_frame){.kind = (enum wire_kind)77};
    assert_int_equal(wire_encode(&e, &out, &n, &f), ERR_PROTO);
}

static void a_copied_request_outlives_its_frame(void **state)
{
    (void)state;
    struct err e = {0};
    struct wire_arena *a = wire_arena_new();
    struct wire_frame f;
    struct wire_req *copy;
    size_t n, n_again;
    uint8_t *again, *b = golden_bytes(gold_tok, &n), *want = golden_bytes(gold_tok, &n);
    OK(wire_decode(&e, &f, a, b, n));
    OK(wire_req_copy(&e, &copy, &f.req));
    wire_arena_free(a);
    memset(b, 0xee, n);
    free(b);
    struct wire_frame g = {.kind = WIRE_TOK, .req = *copy};
    OK(wire_encode(&e, &again, &n_again, &g));
    assert_int_equal(n, n_again);
    assert_memory_equal(again, want, n);
    wire_req_free(copy);
    wire_req_free(NULL);
    free(again);
    free(want);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_schema_changes_only_with_its_version),
        cmocka_unit_test(the_schema_equals_its_documentation),
        cmocka_unit_test(the_documented_example_equals_our_encoding),
        cmocka_unit_test(encoding_equals_another_implementation),
        cmocka_unit_test(frames_of_another_implementation_decode),
        cmocka_unit_test(sampling_defaults_equal_the_contract),
        cmocka_unit_test(malformed_frames_are_refused_with_a_reason),
        cmocka_unit_test(every_cut_of_a_frame_is_refused),
        cmocka_unit_test(the_encoder_enforces_the_limits),
        cmocka_unit_test(a_copied_request_outlives_its_frame),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
