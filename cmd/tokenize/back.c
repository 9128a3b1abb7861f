/* -d: converts ids or frames to text. The first byte selects: frames begin with 0xce, decimal numbers do not. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/list.h"
#include "base/str.h"
#include "cmd/tokenize/tokenize.h"
#include "request/lines.h"

/* Control tokens have the spelling of the file; an id without text is empty. */
static int add_id(struct err *e, struct str *b, const struct text *t, uint32_t id)
{
    size_t n = 0;
    const void *p = text_is_control(t, id) ? (const void *)text_entry(t, id, &n) : (const void *)text_piece(t, id, &n);
    str_add(b, p, p ? n : 0);
    return str_check(e, b, "text");
}

/* Prints and empties the buffer. Ids may end inside a character; the output is always valid UTF-8. */
static int show(struct err *e, struct str *b)
{
    char *fixed = NULL;
    size_t n = 0;
    if (text_utf8_repair(e, &fixed, &n, str_text(b), b->n))
        return e->code;
    if (n)
        fwrite(fixed, 1, n, stdout);
    putchar('\n');
    free(fixed);
    str_clear(b);
    return fflush(stdout) ? err_sys(e, "stdout") : 0;
}

static int line_of_ids(struct err *e, struct str *b, const struct text *t, int64_t n_row, const char *s, size_t n,
                       uint64_t number)
{
    for (size_t i = 0; i < n;) {
        if (s[i] == ' ' || s[i] == '\t' || s[i] == '\r' || s[i] == ',') {
            i++;
            continue;
        }
        uint64_t id = 0;
        size_t first = i;
        while (i < n && s[i] >= '0' && s[i] <= '9' && i - first < 11)
            id = id * 10 + (uint64_t)(s[i++] - '0');
        if (i == first || (i < n && !strchr(" \t\r,", s[i])))
            return err_set(e, ERR_NO, "line %" PRIu64 ": '%.*s' is not a list of token ids", number,
                           (int)(n - first > 40 ? 40 : n - first), s + first);
        if (id >= (uint64_t)n_row)
            return err_set(e, ERR_NO,
                           "line %" PRIu64 ": token id %" PRIu64 " is out of vocabulary: the model has %" PRId64 " ids",
                           number, id, n_row);
        if (add_id(e, b, t, (uint32_t)id))
            return e->code;
    }
    return show(e, b);
}

static int back_lines(struct err *e, const struct text *t, int64_t n_row, struct lines *l)
{
    struct str b = {0};
    const char *line;
    size_t n;
    int rc;
    while (!(rc = lines_next(e, l, &line, &n)) && line) {
        if (n > ASK_LINE_BYTES_MAX)
            rc = err_set(e, ERR_NO, "line %" PRIu64 ": longer than %u bytes", l->number, ASK_LINE_BYTES_MAX);
        else
            rc = line_of_ids(e, &b, t, n_row, line, n, l->number);
        if (rc)
            break;
    }
    str_free(&b);
    return rc;
}

/* Answers arrive in parts, interleaved: each is printed when it ends. */
struct answer {
    uint64_t seq;
    uint32_t index;
    struct str text;
    struct list node;
};

static struct answer *answer_of(struct list *answers, uint64_t seq, uint32_t index)
{
    list_each (struct answer, a, answers, node)
        if (a->seq == seq && a->index == index)
            return a;
    struct answer *a = calloc(1, sizeof *a);
    if (a) {
        a->seq = seq;
        a->index = index;
        list_push_front(answers, &a->node);
    }
    return a;
}

static void answer_drop(struct answer *a)
{
    list_remove(&a->node);
    str_free(&a->text);
    free(a);
}

static int frame(struct err *e, struct list *answers, const struct text *t, const struct wire_frame *f)
{
    struct str b = {0};
    int rc = 0;
    if (f->kind == WIRE_TOK || f->kind == WIRE_OPEN) {
        for (uint32_t i = 0; i < f->req.n_id && !rc; i++)
            rc = add_id(e, &b, t, f->req.ids[i]);
        rc = rc ? rc : show(e, &b);
        str_free(&b);
    } else if (f->kind == WIRE_OUT && !f->out.silent) {
        struct answer *a = answer_of(answers, f->out.seq, f->out.index);
        if (!a)
            return err_nomem(e, "answer", sizeof *a);
        for (uint32_t i = 0; i < f->out.n_id && !rc; i++)
            rc = add_id(e, &a->text, t, f->out.ids[i]);
    } else if (f->kind == WIRE_END) {
        struct answer *a = answer_of(answers, f->end.seq, f->end.index);
        if (!a)
            return err_nomem(e, "answer", sizeof *a);
        rc = show(e, &a->text);
        answer_drop(a);
    }
    return rc;
}

static int back_frames(struct err *e, const struct text *t, int fd, const char *name)
{
    struct wire_reader *in = NULL;
    struct wire_frame *f;
    struct list answers;
    list_init(&answers);
    int rc = wire_reader_new(e, &in, fd, name);
    while (!rc && !(rc = wire_read(e, in, &f)) && f)
        rc = frame(e, &answers, t, f);
    list_each_safe (struct answer, a, &answers, node)
        answer_drop(a);
    wire_reader_free(in);
    return rc;
}

int back(struct err *e, const struct text *t, int64_t n_row, int fd, const char *name)
{
    unsigned char first;
    if (lines_peek(e, &first, fd, name))
        return e->code;
    if (first == 0xce)
        return back_frames(e, t, fd, name);
    struct lines l = {.fd = fd, .name = name};
    int rc = back_lines(e, t, n_row, &l);
    lines_free(&l);
    return rc;
}
