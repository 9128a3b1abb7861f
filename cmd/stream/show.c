/* Turns frames, of decode or of the gateway, into answers that are shown. */
#include <string.h>

#include "cli/cli.h"
#include "cmd/stream/stream.h"
#include "model/model.h"

int show_open(struct err *e, struct show *s)
{
    return order_new(e, &s->order, &s->view);
}

void show_close(struct show *s)
{
    order_free(s->order);
    text_free(s->vocab);
    gguf_free(s->gguf);
}

static int check_vocab(struct err *e, const struct show *s)
{
    if (!s->vocab || !s->has_fp || !memcmp(s->vocab_fp, text_fingerprint(s->vocab), 32))
        return 0;
    return err_set(e, ERR_PROTO, "the vocabulary of %s is not that of the stream: select the model with -m",
                   s->model ? s->model : "the default model");
}

/* The vocabulary is opened only for log-probabilities, which need the text of their tokens. */
static int open_vocab(struct err *e, struct show *s)
{
    char path[4096];
    if (s->vocab)
        return 0;
    if (!s->model && model_default_path(e, path, sizeof path))
        return e->code;
    if (gguf_open(e, &s->gguf, s->model ? s->model : path) || text_open(e, &s->vocab, s->gguf))
        return e->code;
    return check_vocab(e, s);
}

static int hello(struct err *e, struct show *s, const struct wire_hello *h)
{
    s->has_fp = h->has_vocab && h->vocab_fp.n == 32;
    if (s->has_fp)
        memcpy(s->vocab_fp, h->vocab_fp.p, 32);
    return check_vocab(e, s);
}

int show_frame(struct err *e, struct show *s, const struct wire_frame *f)
{
    switch (f->kind) {
    case WIRE_HELLO:
        return hello(e, s, &f->hello);
    case WIRE_OUT:
        if (f->out.n_lp && open_vocab(e, s))
            return e->code;
        return order_out(e, s->order, &f->out, s->vocab);
    case WIRE_END:
        s->n_cancelled += f->end.reason == WIRE_CANCELLED;
        return order_end(e, s->order, &f->end);
    case WIRE_ERR:
        s->n_error++;
        order_end_line(s->order);
        cli_warn(PROG, "request %.*s: %.*s", (int)f->error.id.n, f->error.id.p, (int)f->error.text.n, f->error.text.p);
        return order_error(e, s->order, &f->error);
    case WIRE_BYE:
        return order_bye(e, s->order);
    default:
        return err_set(e, ERR_PROTO, "a frame of kind %s: stream expects the output of decode",
                       wire_kind_name(f->kind));
    }
}

int show_result(struct err *e, const struct show *s)
{
    if (!s->n_error)
        return 0;
    return err_set(e, ERR_NO, "%llu %s failed", (unsigned long long)s->n_error,
                   s->n_error == 1 ? "request" : "requests");
}
