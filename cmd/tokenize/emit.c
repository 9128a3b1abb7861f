/* Converts a request to frames: ids, digests of its full blocks, limits that fit the model. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/time.h"
#include "base/vec.h"
#include "cmd/tokenize/tokenize.h"
#include "proc/proc.h"

int emit_hello(struct err *e, struct tokenize *t)
{
    if (!t->put)
        return 0;
    struct wire_frame f = {.kind = WIRE_HELLO};
    f.hello = (struct wire_hello){
        .version = WIRE_VERSION,
        .from = wire_str_of(PROG),
        .has_vocab = true,
        .vocab_fp = {text_fingerprint(t->text), 32},
        .vocab_n = text_n_token(t->text),
    };
    return t->put(e, t->put_arg, &f);
}

int emit_bye(struct err *e, struct tokenize *t)
{
    if (!t->put)
        return 0;
    struct wire_frame f = {.kind = WIRE_BYE};
    f.bye = (struct wire_bye){.from = wire_str_of(PROG), .n_ok = t->n_ok, .n_error = t->n_error};
    return t->put(e, t->put_arg, &f);
}

/* The id of a request: its own, or "req-SEQ". */
static struct wire_str name(char buf[32], const struct tokenize *t, const struct ask *a)
{
    if (a->id)
        return (struct wire_str){a->id, a->n_id};
    return (struct wire_str){buf, (size_t)snprintf(buf, 32, "req-%" PRIu64, t->seq)};
}

int emit_error(struct err *e, struct tokenize *t, const struct ask *a, const char *where, const struct err *why)
{
    char buf[32], text[600];
    struct wire_str id = name(buf, t, a);
    snprintf(text, sizeof text, "%s%s", where, why->text);
    t->n_error++;
    t->seq++;
    if (!t->put) {
        cli_warn(PROG, "%s", text);
        putchar('\n'); /* so that output line N belongs to input line N */
        return 0;
    }
    struct wire_frame f = {.kind = WIRE_ERR};
    /* The number is incremented before a failure is possible, so no two requests have the same one. */
    f.error = (struct wire_error){.seq = t->seq - 1, .id = id, .code = (uint32_t)why->code, .text = wire_str_of(text)};
    return t->put(e, t->put_arg, &f);
}

/* Logs each unknown name once, not once per line. */
static int log_unknown(struct err *e, struct tokenize *t, const struct ask *a, const char *where)
{
    const char *key;
    json_t *v;
    if (!a->extra)
        return 0;
    json_object_foreach(a->extra, key, v)
    {
        if (ask_knows(key) || json_object_get(t->logged_fields, key))
            continue;
        if (json_object_size(t->logged_fields) < 1000 && json_object_set_new(t->logged_fields, key, json_true()))
            return err_nomem(e, "names of fields", 0);
        cli_warn(PROG, "%sunknown field '%.80s' is passed on", where, key);
    }
    return 0;
}

/* Unknown fields are sent as one map with the name "request", so that they cannot collide with fields of the frame. The
 * field "choices" has the number of answers of the request. */
static int extra_of(struct err *e, struct wire_extra *out, struct tokenize *t, const struct ask *a)
{
    if (!a->extra && a->n == 1)
        return 0;
    json_t *o = json_pack("{s:s,s:s,s:s,s:s}", "k", "bye", "from", PROG, "n_ok", "0", "n_error", "0");
    int bad = a->extra ? json_object_set(o, "request", a->extra) : 0;
    bad |= a->n > 1 ? json_object_set_new(o, "choices", json_integer(a->n)) : 0;
    char *line = !bad ? json_dumps(o, JSON_COMPACT) : NULL;
    json_decref(o);
    if (!line)
        return err_nomem(e, "fields", 0);
    struct wire_frame f;
    uint8_t *data = NULL;
    int r = wire_from_json(e, &f, t->arena, &data, line, strlen(line));
    free(line);
    free(data);
    if (!r)
        *out = f.bye.extra;
    return r;
}

static int with_system(struct err *e, struct tokenize *t, struct ask *a)
{
    if (!t->system || (a->n_message && ask_is_system(a->messages[0].role)))
        return 0;
    struct text_message *m = calloc(a->n_message + 1, sizeof *m);
    if (!m)
        return err_nomem(e, "messages", 0);
    m[0] = (struct text_message){"system", t->system, strlen(t->system)};
    memcpy(m + 1, a->messages, a->n_message * sizeof *m);
    free(a->messages);
    a->messages = m;
    a->n_message++;
    return 0;
}

static int add_ids(struct err *e, struct text_ids *v, const uint32_t *ids, size_t n)
{
    int rc = vec_reserve(e, &v->ids, &v->cap, v->n + n, sizeof *v->ids, "prompt ids");
    if (!rc && n)
        memcpy(v->ids + v->n, ids, n * sizeof *ids);
    v->n += rc ? 0 : n;
    return rc;
}

/* Ids of prefix_token_ids, then of the prompt. */
static int encode(struct err *e, struct text_ids *ids, struct tokenize *t, struct ask *a)
{
    bool alone = a->n_prefix == 0;
    ids->ids = alone ? NULL : a->prefix;
    ids->n = ids->cap = a->n_prefix;
    if (!alone)
        a->prefix = NULL;
    switch (a->kind) {
    case ASK_TEXT:
        return text_encode(e, t->text, ids, a->text, a->n_text,
                           (a->specials && alone ? TEXT_BOS : 0) | (a->control ? TEXT_CONTROL : 0));
    case ASK_MESSAGES:
        if (with_system(e, t, a))
            return e->code;
        return text_chat(e, t->text, ids, a->messages, a->n_message, a->chat_end);
    case ASK_IDS:
        break;
    }
    return add_ids(e, ids, a->ids, a->n_ids);
}

/* Context length of this request: that of the model, or less if the request limits it. */
static uint64_t context_length(const struct tokenize *t, const struct ask *a)
{
    uint64_t context = (uint64_t)t->config.context;
    return a->window && a->window < context ? a->window : context;
}

/* Tokens of the answer that the request insists on; the others may be cut to what the prompt leaves. */
static uint64_t least_answer(const struct ask *a)
{
    return a->strict_window && a->has_max_tokens && a->s.max_tokens ? a->s.max_tokens : 1;
}

/* Refuses a very long text by its length, since encoding it would take seconds. */
static int too_long(struct err *e, const struct tokenize *t, const struct ask *a)
{
    uint64_t n = a->kind == ASK_TEXT ? a->n_text : 0, context = context_length(t, a), longest = text_longest(t->text);
    for (size_t i = 0; a->kind == ASK_MESSAGES && i < a->n_message; i++)
        n += a->messages[i].n_content;
    if (a->truncate || n / longest <= context)
        return 0;
    return ask_context_error(e, &(struct ask_context){context, n / longest, least_answer(a), true});
}

/* Truncates the prompt from the left, only if the request demands it. */
static void truncate_prompt(struct text_ids *ids, const struct ask *a, uint64_t context)
{
    uint64_t keep = (uint64_t)a->truncate;
    if (a->truncate == 0)
        return;
    if (a->truncate < 0)
        keep = a->s.max_tokens < context ? context - a->s.max_tokens : context - 1;
    if (keep >= ids->n)
        return;
    memmove(ids->ids, ids->ids + (ids->n - keep), keep * sizeof *ids->ids);
    ids->n = keep;
}

/* The context holds the prompt and at least one token of the answer; the answer may use the rest. */
static int fit(struct err *e, struct ask *a, const struct tokenize *t, size_t n)
{
    uint64_t context = context_length(t, a), answer = least_answer(a);
    if (n == 0)
        return err_set(e, ERR_NO, "prompt: is empty");
    if (n + answer > context)
        return ask_context_error(e, &(struct ask_context){context, n, answer, false});
    if (a->s.max_tokens > context - n)
        a->s.max_tokens = (uint32_t)(context - n);
    if (a->s.min_tokens > a->s.max_tokens)
        return err_set(e, ERR_NO, "min_tokens: %u, but the prompt of %zu tokens leaves %u of the context of %" PRIu64,
                       a->s.min_tokens, n, a->s.max_tokens, context);
    return 0;
}

/* Chain digests of the full blocks. *out: malloc'd. */
static int digests(struct err *e, uint8_t **out, size_t *n_out, const struct ask *a, const struct text_ids *ids)
{
    size_t n_block = ids->n / KV_BLOCK;
    uint8_t *d = malloc(n_block * KV_DIGEST + 1);
    if (!d)
        return err_nomem(e, "digests", n_block * KV_DIGEST);
    for (size_t b = 0; b < n_block; b++)
        text_digest(d + b * KV_DIGEST, b ? d + (b - 1) * KV_DIGEST : NULL, ids->ids + b * KV_BLOCK, a->salt, a->n_salt);
    *out = d;
    *n_out = n_block * KV_DIGEST;
    return 0;
}

static int write_choices(struct err *e, struct tokenize *t, struct wire_req *r, uint32_t n)
{
    t->n_choice = n;
    for (uint32_t i = 0; i < n; i++) {
        struct wire_frame f = {.kind = WIRE_TOK};
        r->index = i;
        f.req = *r;
        if (t->put(e, t->put_arg, &f))
            return e->code;
    }
    t->n_ok++;
    t->seq++;
    return 0;
}

static int print_ids(struct err *e, struct tokenize *t, const struct text_ids *ids)
{
    for (size_t i = 0; i < ids->n; i++)
        printf(i ? " %" PRIu32 : "%" PRIu32, ids->ids[i]);
    putchar('\n');
    t->n_ok++;
    t->seq++;
    return fflush(stdout) ? err_sys(e, "stdout") : 0;
}

static int write_request(struct err *e, struct tokenize *t, const struct ask *a, const struct text_ids *ids,
                         uint64_t born_ns, uint64_t start_ns)
{
    char buf[32];
    struct wire_req r = {
        .seq = t->seq,
        .id = name(buf, t, a),
        .ids = ids->ids,
        .n_id = (uint32_t)ids->n,
        .s = a->s,
        .salt = {(const uint8_t *)a->salt, a->n_salt},
        .priority = a->priority,
        .born_ns = born_ns,
        .load_ns = t->seq ? 0 : t->load_ns, /* only the first request waited for it */
    };
    if (!a->has_seed && getrandom(&r.s.seed, sizeof r.s.seed, 0) != sizeof r.s.seed)
        return err_sys(e, "random seed");
    wire_arena_reset(t->arena);
    if (extra_of(e, &r.extra, t, a))
        return e->code;
    uint8_t *d = NULL;
    size_t n_d = 0;
    if (digests(e, &d, &n_d, a, ids))
        return e->code;
    r.digests = (struct wire_bytes){d, n_d};
    struct wire_span span = {
        .stage = wire_str_of(PROG),
        .host = wire_str_of(proc_host()),
        .pid = (uint32_t)getpid(),
        .queued_ns = start_ns, /* earlier time was loading, counted in load_ns */
        .start_ns = start_ns,
        .end_ns = time_now_ns(),
        .tokens = ids->n,
        .bytes = ids->n * sizeof *ids->ids,
    };
    r.span = &span;
    r.n_span = 1;
    int rc = write_choices(e, t, &r, a->n);
    free(d);
    return rc;
}

/* ---- bad_words ---- */

struct rows {
    struct text_ids ids;
    uint32_t *lens; /* [2 × words] */
    uint32_t n;
};

static void rows_free(struct rows *r)
{
    text_ids_free(&r->ids);
    free(r->lens);
}

/* Adds the ids of a spelling as a row. *some: it has ids. */
static int add_row(struct err *e, struct rows *r, bool *some, const struct text *t, const char *s, size_t n)
{
    size_t from = r->ids.n;
    if (text_encode(e, t, &r->ids, s, n, 0))
        return e->code;
    if (r->ids.n > WIRE_BAD_IDS_MAX)
        return err_set(e, ERR_NO, "bad_words: over %d token ids, the limit", WIRE_BAD_IDS_MAX);
    *some = r->ids.n > from;
    if (*some)
        r->lens[r->n++] = (uint32_t)(r->ids.n - from);
    return 0;
}

/* Each word as it is encoded at the beginning of a text and after a space. */
static int bad_words(struct err *e, struct rows *r, const struct tokenize *t, const struct ask *a)
{
    char spelt[1 + ASK_BAD_BYTES_MAX] = " ";
    r->lens = malloc((2 * (size_t)a->n_bad + 1) * sizeof *r->lens);
    if (!r->lens)
        return err_nomem(e, "bad words", a->n_bad * sizeof *r->lens);
    for (uint32_t i = 0; i < a->n_bad; i++) {
        bool some = false;
        memcpy(spelt + 1, a->bad[i].p, a->bad[i].n);
        if (add_row(e, r, &some, t->text, spelt + 1, a->bad[i].n))
            return e->code;
        if (!some) /* after a space, only the space would be encoded */
            return err_set(e, ERR_NO, "bad_words[%u]: the vocabulary cannot spell it", i);
        if (add_row(e, r, &some, t->text, spelt, 1 + a->bad[i].n))
            return e->code;
    }
    return 0;
}

int emit(struct err *e, struct tokenize *t, struct ask *a, const char *where, uint64_t born_ns)
{
    uint64_t start_ns = time_now_ns();
    struct text_ids ids = {0};
    struct rows rows = {0};
    struct err why = {0};
    int r = 0;
    if (log_unknown(e, t, a, where))
        return e->code;
    int bad = ask_check_ids(&why, a, t->config.vocab) || ask_check_template(&why, a, t->text) || too_long(&why, t, a) ||
              bad_words(&why, &rows, t, a) || encode(&why, &ids, t, a);
    if (!bad)
        truncate_prompt(&ids, a, context_length(t, a));
    a->s.bad_ids = rows.ids.ids;
    a->s.n_bad_id = (uint32_t)rows.ids.n;
    a->s.bad_lens = rows.lens;
    a->s.n_bad = rows.n;
    if (bad || fit(&why, a, t, ids.n)) {
        if (why.code == ERR_SYS)
            r = err_set(e, ERR_SYS, "%s", why.text);
        else
            r = emit_error(e, t, a, where, &why);
    } else if (t->put) {
        r = write_request(e, t, a, &ids, born_ns, start_ns);
    } else {
        r = print_ids(e, t, &ids);
    }
    text_ids_free(&ids);
    rows_free(&rows);
    return r;
}

int emit_json(struct err *e, struct tokenize *t, const struct ask *base, const char *line, size_t n, const char *where)
{
    uint64_t born_ns = time_now_ns();
    struct ask a;
    struct err why = {0};
    int r = ask_read(&why, &a, base, line, n);
    if (!r)
        r = emit(e, t, &a, where, born_ns);
    else if (r == ERR_SYS)
        err_set(e, r, "%s%.400s", where, why.text);
    else
        r = emit_error(e, t, &a, where, &why);
    ask_free(&a);
    return r;
}
