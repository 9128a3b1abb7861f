/* Fuzzes requests from JSON lines: parsed fields are in range, and a failure sets an error. */
#include <assert.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "request/ask.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void use(const struct ask *a)
{
    volatile size_t sum = 0; /* reads every byte, for the sanitizer */
    (void)sum;
    assert(a->n >= 1 && a->n <= ASK_CHOICES_MAX);
    assert(a->s.temperature >= 0 && isfinite(a->s.temperature));
    assert(a->s.top_p >= 0 && a->s.top_p <= 1 && a->s.min_p >= 0 && a->s.min_p <= 1);
    assert(a->s.typical_p > 0 && a->s.typical_p <= 1 && a->s.penalty_last_n >= -1);
    assert(a->s.min_tokens <= a->s.max_tokens);
    assert(a->s.logprobs >= -1 && a->s.logprobs <= WIRE_TOP_MAX);
    for (size_t i = 0; i < a->n_id; i++)
        sum += (uint8_t)a->id[i];
    for (size_t i = 0; i < a->n_text; i++)
        sum += (uint8_t)a->text[i];
    for (size_t i = 0; i < a->n_ids; i++)
        sum += a->ids[i];
    for (size_t i = 0; i < a->n_message; i++) {
        sum += strlen(a->messages[i].role);
        for (size_t k = 0; k < a->messages[i].n_content; k++)
            sum += (uint8_t)a->messages[i].content[k];
    }
    for (uint32_t i = 0; i < a->s.n_stop; i++) {
        assert(a->s.stop[i].n > 0);
        for (size_t k = 0; k < a->s.stop[i].n; k++)
            sum += (uint8_t)a->s.stop[i].p[k];
    }
    for (uint32_t i = 0; i < a->s.n_stop_id; i++)
        sum += a->s.stop_ids[i];
    for (uint32_t i = 0; i < a->s.n_allowed; i++)
        sum += a->s.allowed[i];
    for (size_t i = 0; i < a->n_prefix; i++)
        sum += a->prefix[i];
    assert(a->truncate >= -1 && a->s.prompt_logprobs >= -1 && a->s.prompt_logprobs <= WIRE_TOP_MAX);
    for (uint32_t i = 0; i < a->n_bad; i++) {
        assert(a->bad[i].n > 0 && a->bad[i].n <= ASK_BAD_BYTES_MAX);
        for (size_t k = 0; k < a->bad[i].n; k++)
            sum += (uint8_t)a->bad[i].p[k];
    }
    for (uint32_t i = 0; i < a->s.n_bias; i++)
        assert(fabsf(a->s.bias[i].bias) <= (float)ASK_BIAS_ABS_MAX);
    struct err e;
    ask_check_ids(&e, a, 49152);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct ask base, a;
    struct err e = {0};
    ask_default(&base);
    if (ask_read(&e, &a, &base, (const char *)data, size) == 0)
        use(&a);
    else
        assert(e.code != 0 && memchr(e.text, 0, sizeof e.text));
    ask_free(&a);
    return 0;
}
