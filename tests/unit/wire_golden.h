/*
 * Frames as another implementation encodes them: msgpack for Python 1.x, packb(use_bin_type=True,
 * use_single_float=True) of dicts in the order of docs/protocol.md; session_hello and prompt by hand from the msgpack
 * specification. The structs have the same content in C.
 */
#ifndef WIRE_GOLDEN_H
#define WIRE_GOLDEN_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "wire/wire.h"

static const char gold_hello[] =
    "85a16b01a776657273696f6e07a466726f6da770726566696c6ca5766f63616282a26670c420000102030405060708090a0b"
    "0c0d0e0f101112131415161718191a1b1c1d1e1fa16ecdc000a26b7687a56d6f64656cc4206465666768696a6b6c6d6e6f70"
    "7172737475767778797a7b7c7d7e7f80818283a474797065a4696e7438a56172697468a56370752d31a66c61796f7574a563"
    "70752d31a76e5f6c617965721ea96e5f6b765f6865616403a8686561645f64696d40";
static const char gold_tok[] =
    "de0023a16b02a3736571cf0000010000000000a5696e64657801a26964a3722d31a369647398007fcc80ccffcd0100cdffff"
    "ce00010000ceffffffffa473656564cfffffffffffffffffaa6d61785f746f6b656e7310aa6d696e5f746f6b656e7302ab74"
    "656d7065726174757265ca3f000000a5746f705f6b28a5746f705f70ca3f400000a97479706963616c5f70ca3f200000a56d"
    "696e5f70ca3e800000b272657065746974696f6e5f70656e616c7479ca3fc00000b070726573656e63655f70656e616c7479"
    "cabf000000b16672657175656e63795f70656e616c7479ca40000000ae70656e616c74795f6c6173745f6e21aa69676e6f72"
    "655f656f73c3a46563686fc3a96b6565705f73746f70c3ac7370656369616c5f74657874c3a86c6f6770726f627305af7072"
    "6f6d70745f6c6f6770726f627302a473746f7092a20a0aa3454e44a873746f705f6964739202cd012ca462696173929207ca"
    "c2c8000092ce00011170ca3fc00000a7616c6c6f7765649203ce00011170a76261645f6964739305cd025807a86261645f6c"
    "656e73920102a473616c74c40200ffa87072696f72697479fda7626f726e5f6e7301a76c6f61645f6e7302a57370616e7391"
    "88a57374616765a8746f6b656e697a65a4686f7374a168a37069644da97175657565645f6e7301a873746172745f6e7302a6"
    "656e645f6e7303a6746f6b656e7308a562797465735aa5785f6e657781a1619301c0cabfc00000";
static const char gold_blk[] =
    "89a16b04a373657103a5696e64657800a5626c6f636b09a56c6179657204a76e5f6c6179657202a76e5f746f6b656e20a373"
    "756dcf0123456789abcdefa464617461c404aabbccdd";
static const char gold_kv[] =
    "88a16b05a373657103a5696e64657800a76e5f746f6b656e21a566697273749405cabf000000929205cabf0000009206cac0"
    "00000001a670726f6d7074929401c090009402cabf80000090ce00011170a663616368656420a76c6f61645f6e7307";
static const char gold_out[] =
    "87a16b06a373657103a5696e64657800a26964a161a369647391cd011ca474657874a420746865a26c709194cd011ccabe80"
    "00009002";
static const char gold_end[] =
    "8ea16b07a373657103a5696e64657800a26964a161a6726561736f6e01a973746f705f74657874a3454e44a773746f705f69"
    "6402ad70726f6d70745f746f6b656e7305b1636f6d706c6574696f6e5f746f6b656e7306ad6361636865645f746f6b656e73"
    "01a76c6f61645f6e7301a7626f726e5f6e7302a866697273745f6e7303a76c6173745f6e7304";
static const char gold_err[] =
    "86a16b08a373657103a5696e64657800a26964a161a4636f646501a474657874b67468652070726f6d707420697320746f6f"
    "206c6f6e67";
static const char gold_bye[] = "84a16b09a466726f6da66465636f6465a46e5f6f6b01a76e5f6572726f7200";

static const char gold_session_hello[] =
    "85a16b41a776657273696f6e07a4726f6c65a6776f726b6572a46e616d65a3772d31a3696e63cf0000010000000000";
static const char gold_prompt[] =
    "89a16b46a373657103a5696e64657801a16e02a26964a161a86e5f70726f6d707421a764696765737473c420000102030405"
    "060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1fa4626f6479c402ce00a5785f6e6577c3";

#define GOLDEN_N 10
#define S(text) ((struct wire_str){text, sizeof(text) - 1})

struct golden {
    const char *hex; /* the whole frame; of blk with its payload of 4 bytes */
    struct wire_frame f;
};

static void golden_hello(struct wire_hello *h)
{
    static uint8_t vocab[32], model[32];
    for (int i = 0; i < 32; i++) {
        vocab[i] = (uint8_t)i;
        model[i] = (uint8_t)(100 + i);
    }
    h->version = WIRE_VERSION;
    h->from = S("prefill");
    h->has_vocab = true;
    h->vocab_fp = (struct wire_bytes){vocab, 32};
    h->vocab_n = 49152;
    h->has_kv = true;
    h->model_fp = (struct wire_bytes){model, 32};
    h->kv_type = S("int8");
    h->arith = S("cpu-1");
    h->layout = S("cpu-1");
    h->n_layer = 30;
    h->n_kv_head = 3;
    h->head_dim = 64;
}

static void golden_req(struct wire_req *r)
{
    static const uint32_t ids[] = {0, 127, 128, 255, 256, 65535, 65536, UINT32_MAX}, stop_ids[] = {2, 300};
    static const uint32_t allowed[] = {3, 70000}, bad_ids[] = {5, 600, 7}, bad_lens[] = {1, 2};
    static const struct wire_str stop[] = {{"\n\n", 2}, {"END", 3}};
    static const struct wire_bias bias[] = {{7, -100}, {70000, 1.5f}};
    static const struct wire_span span[] = {{.stage = {"tokenize", 8},
                                             .host = {"h", 1},
                                             .pid = 77,
                                             .queued_ns = 1,
                                             .start_ns = 2,
                                             .end_ns = 3,
                                             .tokens = 8,
                                             .bytes = 90}};
    static const uint8_t salt[] = {0, 0xff};
    static const uint8_t x_new[] = {0xa5, 'x', '_',  'n',  'e',  'w',  0x81, 0xa1, 'a',
                                    0x93, 1,   0xc0, 0xca, 0xbf, 0xc0, 0,    0};
    r->seq = (uint64_t)1 << 40;
    r->index = 1;
    r->id = S("r-1");
    r->ids = ids;
    r->n_id = 8;
    r->s = (struct wire_sampling){.seed = UINT64_MAX,
                                  .max_tokens = 16,
                                  .min_tokens = 2,
                                  .temperature = 0.5f,
                                  .top_k = 40,
                                  .top_p = 0.75f,
                                  .typical_p = 0.625f,
                                  .min_p = 0.25f,
                                  .repetition_penalty = 1.5f,
                                  .presence_penalty = -0.5f,
                                  .frequency_penalty = 2,
                                  .penalty_last_n = 33,
                                  .ignore_eos = true,
                                  .echo = true,
                                  .keep_stop = true,
                                  .special_text = true,
                                  .logprobs = 5,
                                  .prompt_logprobs = 2,
                                  .stop = stop,
                                  .n_stop = 2,
                                  .stop_ids = stop_ids,
                                  .n_stop_id = 2,
                                  .bias = bias,
                                  .n_bias = 2,
                                  .allowed = allowed,
                                  .n_allowed = 2,
                                  .bad_ids = bad_ids,
                                  .n_bad_id = 3,
                                  .bad_lens = bad_lens,
                                  .n_bad = 2};
    r->salt = (struct wire_bytes){salt, 2};
    r->priority = -3;
    r->born_ns = 1;
    r->load_ns = 2;
    r->span = span;
    r->n_span = 1;
    r->extra = (struct wire_extra){{x_new, sizeof x_new}, 1};
}

static void golden_kv(struct wire_kv *k)
{
    static const struct wire_top top[] = {{5, -0.5f}, {6, -2}};
    static struct wire_logprob prompt[] = {{.id = 1}, {.id = 2, .logprob = -1, .rank = 70000}};
    prompt[0].logprob = NAN;
    *k = (struct wire_kv){.seq = 3,
                          .n_token = 33,
                          .has_first = true,
                          .first = {5, -0.5f, top, 2, 1},
                          .prompt = prompt,
                          .n_prompt = 2,
                          .cached = 32,
                          .load_ns = 7};
}

static void golden_end(struct wire_end *d)
{
    *d = (struct wire_end){.seq = 3,
                           .id = S("a"),
                           .reason = WIRE_STOP,
                           .stop_text = S("END"),
                           .has_stop_id = true,
                           .stop_id = 2,
                           .prompt_tokens = 5,
                           .completion_tokens = 6,
                           .cached_tokens = 1,
                           .load_ns = 1,
                           .born_ns = 2,
                           .first_ns = 3,
                           .last_ns = 4};
}

static void golden_prompt(struct wire_prompt *p)
{
    static const uint8_t body[] = {0xce, 0}, x_new[] = {0xa5, 'x', '_', 'n', 'e', 'w', 0xc3};
    static uint8_t digest[32];
    for (int i = 0; i < 32; i++)
        digest[i] = (uint8_t)i;
    *p = (struct wire_prompt){.seq = 3,
                              .index = 1,
                              .n = 2,
                              .id = S("a"),
                              .n_prompt = 33,
                              .max_tokens = UINT32_MAX,
                              .digests = {digest, 32},
                              .body = {body, 2},
                              .extra = {{x_new, sizeof x_new}, 1}};
}

static inline void golden_frames(struct golden g[GOLDEN_N])
{
    static const uint32_t ids[] = {284};
    static const struct wire_logprob lp[] = {{.id = 284, .logprob = -0.25f, .rank = 2}};
    memset(g, 0, GOLDEN_N * sizeof *g);
    g[0] = (struct golden){gold_hello, {.kind = WIRE_HELLO}};
    golden_hello(&g[0].f.hello);
    g[1] = (struct golden){gold_tok, {.kind = WIRE_TOK}};
    golden_req(&g[1].f.req);
    g[2] = (struct golden){gold_blk, {.kind = WIRE_BLK}};
    g[2].f.blk = (struct wire_blk){
        .seq = 3, .block = 9, .layer = 4, .n_layer = 2, .n_token = 32, .sum = 0x0123456789abcdef, .n_data = 4};
    g[3] = (struct golden){gold_kv, {.kind = WIRE_KV}};
    golden_kv(&g[3].f.kv);
    g[4] = (struct golden){gold_out, {.kind = WIRE_OUT}};
    g[4].f.out =
        (struct wire_out){.seq = 3, .id = S("a"), .ids = ids, .n_id = 1, .text = S(" the"), .lp = lp, .n_lp = 1};
    g[5] = (struct golden){gold_end, {.kind = WIRE_END}};
    golden_end(&g[5].f.end);
    g[6] = (struct golden){gold_err, {.kind = WIRE_ERR}};
    g[6].f.error = (struct wire_error){.seq = 3, .id = S("a"), .code = 1, .text = S("the prompt is too long")};
    g[7] = (struct golden){gold_bye, {.kind = WIRE_BYE}};
    g[7].f.bye = (struct wire_bye){.from = S("decode"), .n_ok = 1};
    g[8] = (struct golden){gold_session_hello, {.kind = WIRE_SESSION_HELLO}};
    g[8].f.session_hello = (struct wire_session_hello){
        .version = WIRE_VERSION, .role = S("worker"), .name = S("w-1"), .inc = (uint64_t)1 << 40};
    g[9] = (struct golden){gold_prompt, {.kind = WIRE_PROMPT}};
    golden_prompt(&g[9].f.prompt);
}

/* malloc'd */
static inline uint8_t *golden_bytes(const char *hex, size_t *n)
{
    *n = strlen(hex) / 2;
    uint8_t *p = malloc(*n + 1);
    for (size_t i = 0; i < *n; i++) {
        char two[3] = {hex[2 * i], hex[2 * i + 1], 0};
        p[i] = (uint8_t)strtoul(two, NULL, 16);
    }
    return p;
}

#endif
