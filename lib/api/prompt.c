/* Decodes the body of a prompt frame, for responses that return the ids of the prompt. */
#include "api/api.h"

int api_prompt_read(struct err *e, struct wire_req **out, const struct wire_prompt *q)
{
    struct wire_arena *a = wire_arena_new();
    struct wire_frame f = {0};
    const uint8_t *p = q->body.p;
    size_t n = q->body.n;
    *out = NULL;
    int rc = a ? 0 : err_nomem(e, "a prompt", n);
    for (int i = 0; i < 2 && !rc; i++) /* hello, tok */
        rc = wire_decode_next(e, &f, a, &p, &n);
    if (!rc && f.kind != WIRE_TOK)
        rc = err_set(e, ERR_PROTO, "prompt frame: its body contains no tok frame");
    rc = rc ? rc : wire_req_copy(e, out, &f.req);
    wire_arena_free(a);
    return rc;
}
