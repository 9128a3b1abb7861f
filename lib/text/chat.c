/*
 * Renders chats to text and ids. A rendered chat is an array of parts: text of the template, and text of messages.
 * Control tokens are recognised in the template's parts only. The text between two control tokens is encoded in one
 * call, because the pre-tokenizer may form a piece across the border of a message.
 *
 * Kinds of template without a system role put the system message before the first user message with an empty line
 * between, or refuse it, as their template does.
 */
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "base/vec.h"
#include "text/text_private.h"

struct part {
    size_t end;
    bool template;
};

struct chat {
    const struct text *t;
    const struct text_chat_style *style;
    struct str out;
    struct part *part;
    size_t n_part, cap_part;
    bool bos;                        /* starts with the BOS token, which is the first part */
    const struct text_message *open; /* the message of the turn that stays open, or NULL */
    struct text_message *copy;       /* of the messages, if their roles are replaced; owned */
};

static void chat_free(struct chat *c)
{
    str_free(&c->out);
    free(c->part);
    free(c->copy);
}

static int put(struct err *e, struct chat *c, const char *s, size_t n, bool template)
{
    if (n > TEXT_N_MAX - c->out.n)
        return err_set(e, ERR_NO, "the rendered chat is longer than the limit of %zu bytes: shorten the messages",
                       TEXT_N_MAX);
    str_add(&c->out, s, n);
    int rc = str_check(e, &c->out, "rendered chat");
    rc = rc ? rc : vec_reserve(e, &c->part, &c->cap_part, c->n_part + 1, sizeof *c->part, "rendered chat");
    if (!rc)
        c->part[c->n_part++] = (struct part){c->out.n, template};
    return rc;
}

static int put_mark(struct err *e, struct chat *c, const char *s)
{
    return put(e, c, s, strlen(s), true);
}

/* Python's strip() removes White_Space and four separators that are not White_Space. */
static bool strips(uint32_t cp)
{
    return text_is_space(cp) || (cp >= 0x1c && cp <= 0x1f);
}

static void strip(const char **s, size_t *n)
{
    uint32_t cp = 0;
    while (*n > 0) {
        int k = text_utf8_step((const uint8_t *)*s, *n, &cp);
        if (k <= 0 || !strips(cp))
            break;
        *s += k;
        *n -= (size_t)k;
    }
    while (*n > 0) {
        size_t at = *n - 1;
        while (at > 0 && ((uint8_t)(*s)[at] & 0xc0) == 0x80)
            at--;
        if (text_utf8_step((const uint8_t *)*s + at, *n - at, &cp) <= 0 || !strips(cp))
            break;
        *n = at;
    }
}

static int put_content(struct err *e, struct chat *c, const char *s, size_t n, bool trim)
{
    char *repaired = NULL;
    if (!text_utf8_valid(s, n)) {
        int rc = text_utf8_repair(e, &repaired, &n, s, n);
        if (rc)
            return rc;
        s = repaired;
    }
    if (trim)
        strip(&s, &n);
    int rc = put(e, c, s, n, false);
    free(repaired);
    return rc;
}

static bool is_role(const struct text_message *m, const char *role)
{
    return strcmp(m->role, role) == 0;
}

static int refuse_role(struct err *e, const struct chat *c, const struct text_message *m, size_t i)
{
    return err_set(e, ERR_NO, "messages[%zu].role: the chat template of %s has no role '%.40s'", i, text_file(c->t),
                   m->role);
}

/* ---- chatml ---- */

static int chatml_turn(struct err *e, struct chat *c, const char *role, const char *s, size_t n, bool open)
{
    int rc = put_mark(e, c, "<|im_start|>");
    rc = rc ? rc : put_mark(e, c, role);
    rc = rc ? rc : put_mark(e, c, "\n");
    rc = rc ? rc : put_content(e, c, s, n, c->style->trims);
    return !rc && !open ? put_mark(e, c, "<|im_end|>\n") : rc;
}

/* Templates of reasoning models drop the reasoning of finished turns and keep the text after it. (They would keep the
 * reasoning of an unfinished turn; render_chatml refuses such chats.) */
static void drop_reasoning(const char **s, size_t *n)
{
    static const char mark[] = "</think>";
    const char *p;
    while ((p = memmem(*s, *n, mark, sizeof mark - 1)) != NULL) {
        *n -= (size_t)(p + sizeof mark - 1 - *s);
        *s = p + sizeof mark - 1;
        while (*n > 0 && **s == '\n') {
            ++*s;
            --*n;
        }
    }
}

/* Templates without tools write the name of any role into the turn's marker: also tool, which has no form of its own.
 */
static bool chatml_knows(const struct text_chat_style *style, const struct text_message *m)
{
    return is_role(m, "system") || is_role(m, "user") || is_role(m, "assistant") ||
           (style->developer && is_role(m, "developer")) || (!style->tool && is_role(m, "tool"));
}

static int render_chatml(struct err *e, struct chat *c, const struct text_message *m, size_t n, bool answer)
{
    const struct text_chat_style *style = c->style;
    size_t last_user = n;
    int rc = 0;
    while (last_user > 0 && !is_role(&m[last_user - 1], "user"))
        last_user--;
    if (style->default_system && !is_role(&m[0], "system"))
        rc = chatml_turn(e, c, "system", style->default_system, style->n_default_system, false);
    for (size_t i = 0; !rc && i < n; i++) {
        const char *s = m[i].content;
        size_t n_s = m[i].n_content;
        if (!chatml_knows(style, &m[i]))
            return refuse_role(e, c, &m[i], i);
        if (style->think && is_role(&m[i], "assistant")) {
            if (i >= last_user)
                return err_set(
                    e, ERR_NO,
                    "messages[%zu]: the chat template of %s requires a user message after an assistant message", i,
                    text_file(c->t));
            drop_reasoning(&s, &n_s);
        }
        rc = chatml_turn(e, c, m[i].role, s, n_s, &m[i] == c->open);
    }
    return !rc && answer ? put_mark(e, c, "<|im_start|>assistant\n") : rc;
}

/* ---- llama3 ---- */

static int llama3_header(struct err *e, struct chat *c, const char *role)
{
    int rc = put_mark(e, c, "<|start_header_id|>");
    rc = rc ? rc : put_mark(e, c, role);
    return rc ? rc : put_mark(e, c, "<|end_header_id|>\n\n");
}

/* The template's fallback date. With the current date, the same chat would give other ids tomorrow. */
static int llama3_dates(struct err *e, struct chat *c, const struct text_message *system)
{
    int rc = llama3_header(e, c, "system");
    rc = rc ? rc : put_mark(e, c, "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n");
    if (!rc && system)
        rc = put_content(e, c, system->content, system->n_content, true);
    return !rc && (!system || system != c->open) ? put_mark(e, c, "<|eot_id|>") : rc;
}

static int render_llama3(struct err *e, struct chat *c, const struct text_message *m, size_t n, bool answer)
{
    size_t i = 0;
    int rc = 0;
    if (c->style->dated) {
        i = is_role(&m[0], "system");
        rc = llama3_dates(e, c, i == 1 ? &m[0] : NULL);
    }
    for (; !rc && i < n; i++) {
        if (!is_role(&m[i], "system") && !is_role(&m[i], "user") && !is_role(&m[i], "assistant"))
            return refuse_role(e, c, &m[i], i);
        rc = llama3_header(e, c, m[i].role);
        rc = rc ? rc : put_content(e, c, m[i].content, m[i].n_content, c->style->trims);
        if (!rc && &m[i] != c->open)
            rc = put_mark(e, c, "<|eot_id|>");
    }
    return !rc && answer ? llama3_header(e, c, "assistant") : rc;
}

/* ---- kinds with alternating turns ---- */

/* *system is NULL if the chat has none. The messages after it must alternate: user, assistant, user, … */
static int take_system(struct err *e, const struct text_message **system, const struct chat *c,
                       const struct text_message *m, size_t n)
{
    size_t first = is_role(&m[0], "system");
    *system = first == 1 ? &m[0] : NULL;
    if (first == 1 && c->style->no_system)
        return refuse_role(e, c, &m[0], 0);
    for (size_t i = first; i < n; i++) {
        if (!is_role(&m[i], "user") && !is_role(&m[i], "assistant"))
            return refuse_role(e, c, &m[i], i);
        if (is_role(&m[i], "user") != ((i - first) % 2 == 0))
            return err_set(
                e, ERR_NO,
                "messages[%zu].role: '%s' is out of turn: the chat template of %s requires user, assistant, user, …", i,
                m[i].role, text_file(c->t));
    }
    if (first == n)
        return err_set(e, ERR_NO, "messages: the chat template of %s requires a user message after the system message",
                       text_file(c->t));
    return 0;
}

static int put_system_before(struct err *e, struct chat *c, const struct text_message *system)
{
    if (!system)
        return 0;
    int rc = put_content(e, c, system->content, system->n_content, false);
    return rc ? rc : put_mark(e, c, "\n\n");
}

static int mistral_answer(struct err *e, struct chat *c, const struct text_message *m)
{
    int rc = put_mark(e, c, c->style->answer_open);
    rc = rc ? rc : put_content(e, c, m->content, m->n_content, c->style->trims);
    if (rc || m == c->open)
        return rc;
    if (c->t->eos != TEXT_NONE)
        rc = put(e, c, c->t->row[c->t->eos].entry, c->t->row[c->t->eos].n_entry, true);
    return rc ? rc : put_mark(e, c, c->style->answer_close);
}

static int render_mistral(struct err *e, struct chat *c, const struct text_message *m, size_t n)
{
    const struct text_message *system;
    int rc = take_system(e, &system, c, m, n);
    size_t first = !rc && system, with_system = first;
    if (c->style->system_last)
        with_system = n - 1; /* if the last message is from the assistant, the template omits the system message */
    for (size_t i = first; !rc && i < n; i++) {
        if (is_role(&m[i], "assistant")) {
            rc = mistral_answer(e, c, &m[i]);
            continue;
        }
        rc = put_mark(e, c, c->style->inst_open);
        if (!rc && i == with_system)
            rc = put_system_before(e, c, system);
        rc = rc ? rc : put_content(e, c, m[i].content, m[i].n_content, false);
        if (!rc && &m[i] != c->open)
            rc = put_mark(e, c, c->style->inst_close);
    }
    return rc;
}

static int render_gemma(struct err *e, struct chat *c, const struct text_message *m, size_t n, bool answer)
{
    const struct text_message *system;
    int rc = take_system(e, &system, c, m, n);
    size_t first = !rc && system;
    for (size_t i = first; !rc && i < n; i++) {
        rc = put_mark(e, c, is_role(&m[i], "user") ? "<start_of_turn>user\n" : "<start_of_turn>model\n");
        if (!rc && i == first)
            rc = put_system_before(e, c, system);
        rc = rc ? rc : put_content(e, c, m[i].content, m[i].n_content, c->style->trims);
        if (!rc && &m[i] != c->open)
            rc = put_mark(e, c, "<end_of_turn>\n");
    }
    return !rc && answer ? put_mark(e, c, "<start_of_turn>model\n") : rc;
}

/* ---- all kinds ---- */

/* OpenAI's newer name of the role system, which few templates know. */
static int replace_developer(struct err *e, struct chat *c, const struct text_message **m, size_t n)
{
    size_t i = 0;
    while (i < n && !is_role(&(*m)[i], "developer"))
        i++;
    if (i == n || c->style->developer)
        return 0;
    c->copy = malloc(n * sizeof *c->copy);
    if (!c->copy)
        return err_nomem(e, "messages", n * sizeof *c->copy);
    memcpy(c->copy, *m, n * sizeof *c->copy);
    for (; i < n; i++)
        if (is_role(&c->copy[i], "developer"))
            c->copy[i].role = "system";
    *m = c->copy;
    return 0;
}

static int render(struct err *e, struct chat *c, const struct text *t, const struct text_message *m, size_t n,
                  enum text_chat_end end)
{
    bool answer = end == TEXT_CHAT_ANSWER;
    *c = (struct chat){.t = t, .style = &t->chat};
    if (t->chat.kind == CHAT_ABSENT)
        return err_set(e, ERR_NO, "messages: %s has no chat template; send a formatted prompt as text instead",
                       text_file(t));
    if (t->chat.kind == CHAT_UNKNOWN)
        return err_set(
            e, ERR_NO,
            "messages: the chat template of %s is not supported: '%s' (digest %s) is none of those whose "
            "rendering was verified; send a formatted prompt as text instead, or use another file of the model",
            text_file(t), t->chat.head, t->chat.digest);
    if (n == 0)
        return err_set(e, ERR_NO, "messages: the list is empty");
    if (replace_developer(e, c, &m, n))
        return e->code;
    c->open = end == TEXT_CHAT_OPEN ? &m[n - 1] : NULL;
    /* Exactly one BOS token: the template's own, or the one that the file requires before any text. */
    c->bos = t->bos != TEXT_NONE && (t->chat.writes_bos || t->add_bos);
    int rc = put(e, c, c->bos ? t->row[t->bos].entry : "", c->bos ? t->row[t->bos].n_entry : 0, true);
    if (rc)
        return rc;
    switch (t->chat.kind) {
    case CHAT_CHATML:
        return render_chatml(e, c, m, n, answer);
    case CHAT_LLAMA3:
        return render_llama3(e, c, m, n, answer);
    case CHAT_MISTRAL:
        return render_mistral(e, c, m, n);
    case CHAT_GEMMA:
        return render_gemma(e, c, m, n, answer);
    case CHAT_ABSENT:
    case CHAT_UNKNOWN:
        break;
    }
    return 0;
}

const char *text_chat_template(const struct text *t, size_t *n)
{
    *n = t->n_template;
    return t->template;
}

int text_chat_render(struct err *e, const struct text *t, char **out, size_t *n_out, const struct text_message *m,
                     size_t n, enum text_chat_end end)
{
    struct chat c;
    int rc = render(e, &c, t, m, n, end);
    rc = rc ? rc : str_take(e, out, n_out, &c.out, "rendered chat");
    chat_free(&c);
    return rc;
}

static int encode_parts(struct err *e, struct text_ids *out, struct text_run *w, const struct chat *c)
{
    size_t run = c->part[0].end, from = run;
    int rc = c->bos && out->n == 0 ? text_ids_push(e, out, c->t->bos) : 0;
    for (size_t i = 1; !rc && i < c->n_part; from = c->part[i++].end) {
        size_t at, len, end = c->part[i].end;
        while (!rc && c->part[i].template) {
            uint32_t id = text_added_find(&c->t->control, &at, &len, c->out.p, end, from);
            if (id == TEXT_NONE)
                break;
            from = at + len;
            if (c->t->row[id].kind != ENTRY_CONTROL)
                continue;
            rc = text_encode_run(e, out, w, c->t, c->out.p + run, at - run);
            rc = rc ? rc : text_ids_push(e, out, id);
            run = from;
        }
    }
    return rc ? rc : text_encode_run(e, out, w, c->t, c->out.p + run, c->out.n - run);
}

int text_chat(struct err *e, const struct text *t, struct text_ids *out, const struct text_message *m, size_t n,
              enum text_chat_end end)
{
    struct chat c;
    struct text_run w = {0};
    size_t n_before = out->n;
    int rc = render(e, &c, t, m, n, end);
    rc = rc ? rc : encode_parts(e, out, &w, &c);
    if (rc)
        out->n = n_before;
    text_run_free(&w);
    chat_free(&c);
    return rc;
}
