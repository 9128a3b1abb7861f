/* A prompt frame as tokenize builds it, with ids in its body. */
#ifndef TEST_PROMPT_BUILD_H
#define TEST_PROMPT_BUILD_H

#include <stdlib.h>

#include "wire/wire.h"

struct prompt_body {
    uint8_t *p; /* freed by the caller */
    size_t n, cap;
};

static inline struct wire_prompt prompt_build(struct prompt_body *b, const uint32_t *ids, uint32_t n)
{
    struct err e;
    struct wire_frame hello = {.kind = WIRE_HELLO}, tok = {.kind = WIRE_TOK};
    *b = (struct prompt_body){0};
    hello.hello.version = WIRE_VERSION;
    wire_sampling_default(&tok.req.s);
    tok.req.ids = ids;
    tok.req.n_id = n;
    if (wire_encode_add(&e, &b->p, &b->n, &b->cap, &hello) || wire_encode_add(&e, &b->p, &b->n, &b->cap, &tok))
        abort();
    return (struct wire_prompt){.n = 1, .n_prompt = n, .max_tokens = UINT32_MAX, .body = {b->p, b->n}};
}

#endif
