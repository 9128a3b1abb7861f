#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <jansson.h>
#include <stdio.h>

#include "wire/wire.h"

#include "unit/asserts.h"
#include "unit/wire_golden.h"

/* Frame to JSON to frame must return the same bytes. *line: the JSON, malloc'd. */
static void round_trip(char **line, const uint8_t *b, size_t n, const uint8_t *data)
{
    struct err e = {0};
    struct wire_arena *a = wire_arena_new();
    struct wire_frame f, back;
    uint8_t *data_back, *again;
    size_t n_again;
    OK(wire_decode(&e, &f, a, b, n));
    OK(wire_to_json(&e, line, &f, data, true));
    assert_null(strchr(*line, '\n'));
    OK(wire_from_json(&e, &back, a, &data_back, *line, strlen(*line)));
    OK(wire_encode(&e, &again, &n_again, &back));
    assert_int_equal(n_again, n);
    assert_memory_equal(again, b, n);
    if (data) {
        assert_int_equal(back.blk.n_data, f.blk.n_data);
        assert_memory_equal(data_back, data, f.blk.n_data);
    }
    free(data_back);
    free(again);
    wire_arena_free(a);
}

static void every_kind_round_trips(void **state)
{
    (void)state;
    struct golden g[GOLDEN_N];
    golden_frames(g);
    for (int i = 0; i < GOLDEN_N; i++) {
        size_t n;
        char *line;
        uint8_t *b = golden_bytes(g[i].hex, &n);
        bool blk = g[i].f.kind == WIRE_BLK;
        round_trip(&line, b, blk ? n - 4 : n, blk ? b + n - 4 : NULL);
        json_t *j = json_loads(line, JSON_REJECT_DUPLICATES, NULL);
        assert_non_null(j);
        assert_string_equal(json_string_value(json_object_get(j, "k")), wire_kind_name(g[i].f.kind));
        json_decref(j);
        free(line);
        free(b);
    }
}

static void the_json_form_is_as_documented(void **state)
{
    (void)state;
    size_t n;
    char *line;
    uint8_t *b = golden_bytes(gold_tok, &n);
    round_trip(&line, b, n, NULL);
    assert_in(line, "\"seq\":\"1099511627776\",\"index\":1,\"id\":\"r-1\",\"ids\":[0,127,128");
    assert_in(line, "\"seed\":\"18446744073709551615\"");
    assert_in(line, "\"salt\":\"00ff\"");
    assert_in(line, "\"stop\":[\"\\n\\n\",\"END\"]");
    assert_in(line, "\"bias\":[[7,-100.0],[70000,1.5]]");
    assert_in(line, "\"x_new\":{\"msgpack\":"); /* it contains a float32 */
    free(line);
    free(b);
    b = golden_bytes(gold_kv, &n);
    round_trip(&line, b, n, NULL);
    assert_in(line, "\"prompt\":[[1,null,[],0],[2,-1.0,[],70000]]");
    free(line);
    free(b);
    b = golden_bytes(gold_end, &n);
    round_trip(&line, b, n, NULL);
    assert_in(line, "\"reason\":\"stop\"");
    free(line);
    free(b);
    b = golden_bytes(gold_hello, &n);
    round_trip(&line, b, n, NULL);
    assert_in(line, "\"fp\":\"000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f\"");
    free(line);
    free(b);
}

/* The payload is aa bb cc dd: base64 by coreutils, the sum by xxhash for Python. */
static void a_payload_is_written_whole_or_as_its_sum(void **state)
{
    (void)state;
    struct err e = {0};
    struct golden g[GOLDEN_N];
    golden_frames(g);
    const struct wire_frame *f = &g[2].f;
    const uint8_t data[] = {0xaa, 0xbb, 0xcc, 0xdd};
    char *line;
    OK(wire_to_json(&e, &line, f, NULL, true));
    assert_in(line, "\"data\":{\"bytes\":\"4\"}}");
    free(line);
    OK(wire_to_json(&e, &line, f, data, true));
    assert_in(line, "\"data\":\"qrvM3Q==\"}");
    free(line);
    OK(wire_to_json(&e, &line, f, data, false));
    assert_in(line, "\"data\":{\"bytes\":\"4\",\"sum\":\"13823396381394797140\"}}");
    struct wire_frame back;
    struct wire_arena *a = wire_arena_new();
    uint8_t *none;
    assert_int_equal(wire_from_json(&e, &back, a, &none, line, strlen(line)), ERR_PROTO);
    assert_in(e.text, "frames --full");
    assert_null(none);
    free(line);
    wire_arena_free(a);
}

/* An out frame with a text or an extra field that is given in msgpack, by the specification. */
static void unusual_values_round_trip(void **state)
{
    (void)state;
    static const struct {
        const char *hex, *json;
    } odd[] = {
        {"a474657874a3fffe41", "\"text\":{\"base64\":\"//5B\"}"},
        {"a474657874a3410042", "\"text\":\"A\\u0000B\""},
        {"a178cf7fffffffffffffff", "\"x\":{\"int\":\"9223372036854775807\"}"},
        {"a178d38000000000000000", "\"x\":{\"int\":\"-9223372036854775808\"}"},
        {"a178ce00010000", "\"x\":65536"},
        {"a178cf0000000000010000", "\"x\":{\"msgpack\":\"zwAAAAAAAQAA\"}"},
        {"a178cb3ff8000000000000", "\"x\":1.5"},
        {"a178cb7ff8000000000000", "\"x\":{\"msgpack\":"},
        {"a178cb3fd3333333333334", "\"x\":{\"msgpack\":"}, /* 0.1 + 0.2 needs 17 digits */
        {"a178cb3fb999999999999a", "\"x\":0.1"},
        {"a178c40100", "\"x\":{\"base64\":\"AA==\"}"},
        {"a17881a6626173653634a141", "\"x\":{\"msgpack\":"}, /* a map that looks like a tag */
        {"a17881a3696e7401", "\"x\":{\"msgpack\":"},
        {"a17882a16101a16102", "\"x\":{\"msgpack\":"}, /* a key twice */
        {"a178810102", "\"x\":{\"msgpack\":"},
        {"a178d40500", "\"x\":{\"msgpack\":"},
        {"a17893c0c3a161", "\"x\":[null,true,\"a\"]"},
        {"a178a1ff", "\"x\":{\"msgpack\":"},
        {"a17880", "\"x\":{}"},
    };
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        char hex[256], *line;
        size_t n;
        snprintf(hex, sizeof hex, "85a16b06a373657103a5696e64657800a26964a161%s", odd[i].hex);
        uint8_t *b = golden_bytes(hex, &n);
        round_trip(&line, b, n, NULL);
        assert_in(line, odd[i].json);
        free(line);
        free(b);
    }
}

/* A sample of bit patterns over the whole range. */
static void floats_round_trip_bit_for_bit(void **state)
{
    (void)state;
    struct err e = {0};
    struct wire_arena *a = wire_arena_new();
    for (uint32_t bits = 0x00000001; bits < 0x461c4000; bits += 0x0001f3a7) { /* up to 10000 */
        struct wire_frame f = {.kind = WIRE_TOK}, back;
        wire_sampling_default(&f.req.s);
        memcpy(&f.req.s.temperature, &bits, sizeof bits);
        char *line;
        uint8_t *none;
        OK(wire_to_json(&e, &line, &f, NULL, true));
        OK(wire_from_json(&e, &back, a, &none, line, strlen(line)));
        assert_memory_equal(&back.req.s.temperature, &bits, sizeof bits);
        free(line);
        wire_arena_reset(a);
    }
    wire_arena_free(a);
}

static void malformed_lines_are_refused_with_the_field(void **state)
{
    (void)state;
    static const struct {
        const char *line, *reason;
    } bad[] = {
        {"", "column"},
        {"nonsense", "column"},
        {"[]", "\"k\", the kind of a frame"},
        {"{\"k\":7}", "\"k\", the kind of a frame"},
        {"{\"k\":\"hi\"}", "\"k\", the kind of a frame"},
        {"{\"k\":\"bye\",\"k\":\"bye\"}", "duplicate"},
        {"{\"k\":\"bye\",\"from\":\"x\"}", "field n_ok: it is missing"},
        {"{\"k\":\"bye\",\"from\":\"x\",\"n_ok\":\"-1\"}", "field n_ok: a decimal string"},
        {"{\"k\":\"bye\",\"from\":\"x\",\"n_ok\":\"18446744073709551616\"}", "field n_ok: it is outside 64 bits"},
        {"{\"k\":\"bye\",\"from\":\"x\",\"n_ok\":1.5}", "field n_ok: a decimal string"},
        {"{\"k\":\"bye\",\"from\":3}", "field from: a string"},
        {"{\"k\":\"tok\",\"ids\":7}", "field ids: an array"},
        {"{\"k\":\"tok\",\"ids\":[-1]}", "a negative integer where"},
        {"{\"k\":\"tok\",\"ids\":[\"1\"]}", "field ids: an integer"},
        {"{\"k\":\"tok\",\"temperature\":1e30}", "field temperature: 1e+30 is outside 0 to 10000"},
        {"{\"k\":\"tok\",\"temperature\":null}", "field temperature: a number"},
        {"{\"k\":\"tok\",\"echo\":1}", "field echo: true or false"},
        {"{\"k\":\"tok\",\"salt\":\"abc\"}", "field salt: it is not hex"},
        {"{\"k\":\"tok\",\"bias\":[[1]]}", "bias must be an array of 2"},
        {"{\"k\":\"tok\",\"spans\":[[]]}", "span must be an object"},
        {"{\"k\":\"end\",\"reason\":\"bored\"}", "field reason: stop, length"},
        {"{\"k\":\"blk\",\"data\":\"?\"}", "field data: it is not base64"},
        {"{\"k\":\"blk\",\"data\":\"aGk=\"}", "it is missing"},
        {"{\"k\":\"out\",\"x\":{\"int\":\"99999999999999999999\"}}", "field x: {\"int\"} is outside 64 bits"},
        {"{\"k\":\"out\",\"x\":{\"msgpack\":\"wQ==\"}}", "not one value of msgpack"},
        {"{\"k\":\"out\",\"x\":[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]}", "too deeply"},
        {"{\"k\":\"out\",\"\\u00e9\":1}", "printable ASCII"},
    };
    struct err e = {0};
    struct wire_arena *a = wire_arena_new();
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct wire_frame f;
        uint8_t *data;
        int rc = wire_from_json(&e, &f, a, &data, bad[i].line, strlen(bad[i].line));
        if (rc != ERR_PROTO)
            fail_msg("%s is accepted (%d)", bad[i].line, rc);
        assert_in(e.text, bad[i].reason);
    }
    wire_arena_free(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_round_trips),
        cmocka_unit_test(the_json_form_is_as_documented),
        cmocka_unit_test(a_payload_is_written_whole_or_as_its_sum),
        cmocka_unit_test(unusual_values_round_trip),
        cmocka_unit_test(floats_round_trip_bit_for_bit),
        cmocka_unit_test(malformed_lines_are_refused_with_the_field),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
