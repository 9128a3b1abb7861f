/* The error of a request that exceeds the context length. */
#include "request/ask.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define BEGIN "This model's maximum context length is "

/* litellm, LangChain and others recognise the error by this text of OpenAI and vLLM. */
int ask_context_error(struct err *e, const struct ask_context *c)
{
    const char *least = c->at_least ? "at least " : "";
    return err_set(e, ERR_NO,
                   BEGIN "%" PRIu64 " tokens. However, you requested %s%" PRIu64 " tokens (%s%" PRIu64
                         " in the messages, %" PRIu64 " in the completion). "
                         "Please reduce the length of the messages or completion.",
                   c->context, least, c->n_prompt + c->n_answer, least, c->n_prompt, c->n_answer);
}

static const char *skip(const char *s, const char *prefix)
{
    size_t n = strlen(prefix);
    return strncmp(s, prefix, n) ? s : s + n;
}

bool ask_context_read(struct ask_context *out, const char *text)
{
    struct ask_context c = {0};
    uint64_t total = 0;
    int n = 0;
    if (sscanf(text, BEGIN "%" SCNu64 " tokens. However, you requested %n", &c.context, &n) != 1 || !n)
        return false;
    const char *p = skip(text + n, "at least ");
    c.at_least = p > text + n;
    n = 0;
    if (sscanf(p, "%" SCNu64 " tokens (%n", &total, &n) != 1 || !n)
        return false;
    p = skip(p + n, "at least ");
    if (sscanf(p, "%" SCNu64 " in the messages, %" SCNu64 " in the completion)", &c.n_prompt, &c.n_answer) != 2)
        return false;
    *out = c;
    return true;
}
