/*
 * The style of a chat template. Templates are programs, but few kinds are in use: a kind is recognised by its markers,
 * and the variants of a kind by the phrases that cause them. That is true for many templates and wrong for others which
 * look the same (one leaves out a default system message, one opens an answer with <think>). So a chat is rendered only
 * if the template is one of those that were compared with their rendering by Jinja (chat_known.c). Any other is refused
 * when a chat is rendered, not when the file is opened, because text completion does not need it.
 */
#include <stdlib.h>
#include <string.h>

#include "text/text_private.h"

struct tpl {
    const char *p;
    size_t n;
};

static bool has(const struct tpl *t, const char *s)
{
    return memmem(t->p, t->n, s, strlen(s)) != NULL;
}

static bool has_any(const struct tpl *t, const char *const *s)
{
    for (; *s; s++)
        if (has(t, *s))
            return true;
    return false;
}

const char *const *text_chat_markers(enum text_chat_kind kind)
{
    static const char *const none[] = {NULL};
    static const char *const chatml[] = {"<|im_start|>", "<|im_end|>", NULL};
    static const char *const llama3[] = {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", NULL};
    static const char *const gemma[] = {"<start_of_turn>", "<end_of_turn>", NULL};
    static const char *const mistral[] = {"[INST]", "[/INST]", NULL};
    switch (kind) {
    case CHAT_CHATML:
        return chatml;
    case CHAT_LLAMA3:
        return llama3;
    case CHAT_GEMMA:
        return gemma;
    case CHAT_MISTRAL:
        return mistral;
    case CHAT_ABSENT:
    case CHAT_UNKNOWN:
        break;
    }
    return none;
}

/* phi-4 and Llama 2 templates contain some of the same markers with another meaning. */
static enum text_chat_kind kind_of(const struct tpl *t)
{
    if (has(t, "<|im_sep|>") || has(t, "<<SYS>>"))
        return CHAT_UNKNOWN;
    if (has(t, "<|im_start|>") && has(t, "<|im_end|>"))
        return CHAT_CHATML;
    if (has(t, "<|start_header_id|>") && has(t, "<|end_header_id|>") && has(t, "<|eot_id|>"))
        return CHAT_LLAMA3;
    if (has(t, "<start_of_turn>") && has(t, "<end_of_turn>"))
        return CHAT_GEMMA;
    if (has(t, "[INST]") && has(t, "[/INST]"))
        return CHAT_MISTRAL;
    return CHAT_UNKNOWN;
}

/* Finds the text of the default system message, "You are …" in "…<|im_start|>system\nYou are …<|im_end|>…". The
 * template may write the line feed as a byte or as \n. If a quote or a brace comes before the end marker, the template
 * builds the text from a message, so it is not a default. */
static int find_default_system(struct err *e, struct text_chat_style *out, const struct tpl *t)
{
    static const char mark[] = "<|im_start|>system", end_mark[] = "<|im_end|>";
    const char *p = t->p, *end = t->p + t->n;
    while ((p = memmem(p, (size_t)(end - p), mark, sizeof mark - 1)) != NULL) {
        p += sizeof mark - 1;
        if (p < end && *p == '\n')
            p++;
        else if (end - p >= 2 && p[0] == '\\' && p[1] == 'n')
            p += 2;
        else
            continue;
        const char *stop = memmem(p, (size_t)(end - p), end_mark, sizeof end_mark - 1);
        if (!stop)
            return 0;
        size_t n = (size_t)(stop - p);
        if (n == 0 || memchr(p, '\'', n) != NULL || memchr(p, '"', n) != NULL || memchr(p, '{', n) != NULL)
            continue;
        out->default_system = malloc(n + 1);
        if (!out->default_system)
            return err_nomem(e, "chat template", n + 1);
        for (size_t i = 0; i < n; i++) {
            bool escape = p[i] == '\\' && i + 1 < n && p[i + 1] == 'n';
            out->default_system[out->n_default_system++] = escape ? '\n' : p[i];
            i += escape;
        }
        return 0;
    }
    return 0;
}

static void set_mistral(struct text_chat_style *out, const struct tpl *t)
{
    static const char *const blank_before[] = {"' [INST]", "\" [INST]", NULL};
    static const char *const blank_after[] = {"[INST] ", NULL};
    static const char *const blank_close[] = {"' [/INST]", "\" [/INST]", NULL};
    static const char *const blank_answer[] = {"' ' + message[", "\" \" + message[", "' ' + content", "\" \" + content",
                                               NULL};
    static const char *const blank_end[] = {"eos_token + ' '", "eos_token + \" \"", "eos_token+' '", NULL};
    static const char *const last[] = {"loop.last and system_message", "loop.last and messages[0]", NULL};
    bool before = has_any(t, blank_before), after = has_any(t, blank_after);
    out->inst_open = before && after ? " [INST] " : before ? " [INST]" : after ? "[INST] " : "[INST]";
    out->inst_close = has_any(t, blank_close) ? " [/INST]" : "[/INST]";
    out->answer_open = has_any(t, blank_answer) ? " " : "";
    out->answer_close = has_any(t, blank_end) ? " " : "";
    out->no_system = !has(t, "system");
    out->system_last = has_any(t, last);
}

int text_chat_style_of(struct err *e, struct text_chat_style *out, const char *template, size_t n)
{
    static const char *const trim[] = {"| trim", "|trim", ".strip()", NULL};
    static const char *const bos[] = {"bos_token", "<|begin_of_text|>", "'<s>'", "'<bos>'", NULL};
    struct tpl t = {template, n};
    out->kind = out->markers = kind_of(&t);
    out->writes_bos = has_any(&t, bos);
    out->trims = has_any(&t, trim);
    out->developer = has(&t, "developer");
    switch (out->kind) {
    case CHAT_CHATML:
        out->think = has(&t, "</think>");
        out->trims = out->trims && !out->think;
        out->tool = has(&t, "<tool_response>") || has(&t, "tool_calls");
        return find_default_system(e, out, &t);
    case CHAT_LLAMA3:
        out->dated = has(&t, "Cutting Knowledge Date");
        break;
    case CHAT_GEMMA:
        out->no_system = has(&t, "System role not supported") || !has(&t, "system");
        break;
    case CHAT_MISTRAL:
        set_mistral(out, &t);
        break;
    case CHAT_ABSENT:
    case CHAT_UNKNOWN:
        break;
    }
    return 0;
}

static int refuse(struct err *e, struct text_chat_style *out, const char *template, size_t n)
{
    size_t head = n < 60 ? n : 60;
    out->kind = CHAT_UNKNOWN;
    out->head = malloc(head + 1);
    if (!out->head)
        return err_nomem(e, "chat template", head + 1);
    for (size_t i = 0; i < head; i++)
        out->head[i] = (unsigned char)template[i] < ' ' ? ' ' : template[i];
    out->head[head] = 0;
    return 0;
}

int text_chat_recognise(struct err *e, struct text_chat_style *out, const char *template, size_t n)
{
    int rc = text_chat_style_of(e, out, template, n);
    text_chat_digest(out->digest, template, n);
    return !rc && !text_chat_known(out->digest) ? refuse(e, out, template, n) : rc;
}

void text_chat_style_free(struct text_chat_style *c)
{
    free(c->head);
    free(c->default_system);
}
