/*
 * Small GGUF files for the tests of lib/text: metadata only, so that the vocabulary of the default model can be opened
 * with another kind, template or flag, through the same door as a real file.
 */
#ifndef TEXT_GGUF_H
#define TEXT_GGUF_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "model/gguf.h"
#include "model/model.h"
#include "text/text.h"

struct tiny_gguf {
    FILE *f;
    uint64_t n_key;
    char path[64];
};

static inline void tiny_put(struct tiny_gguf *w, const void *p, size_t n)
{
    if (n != 0 && fwrite(p, 1, n, w->f) != n)
        abort();
}

static inline void tiny_u32(struct tiny_gguf *w, uint32_t v)
{
    tiny_put(w, &v, sizeof v);
}

static inline void tiny_u64(struct tiny_gguf *w, uint64_t v)
{
    tiny_put(w, &v, sizeof v);
}

static inline void tiny_str(struct tiny_gguf *w, const char *s, size_t n)
{
    tiny_u64(w, n);
    tiny_put(w, s, n);
}

static inline void tiny_begin(struct tiny_gguf *w)
{
    memset(w, 0, sizeof *w);
    snprintf(w->path, sizeof w->path, "/tmp/text-test-XXXXXX");
    int fd = mkstemp(w->path);
    w->f = fd < 0 ? NULL : fdopen(fd, "wb");
    if (w->f == NULL)
        abort();
    tiny_put(w, "GGUF", 4);
    tiny_u32(w, 3);
    tiny_u64(w, 0); /* tensors */
    tiny_u64(w, 0); /* keys: set at the end */
}

static inline void tiny_key(struct tiny_gguf *w, const char *key, uint32_t type)
{
    tiny_str(w, key, strlen(key));
    tiny_u32(w, type);
    w->n_key++;
}

static inline void tiny_key_str(struct tiny_gguf *w, const char *key, const char *s)
{
    tiny_key(w, key, 8);
    tiny_str(w, s, strlen(s));
}

static inline void tiny_key_u32(struct tiny_gguf *w, const char *key, uint32_t v)
{
    tiny_key(w, key, 4);
    tiny_u32(w, v);
}

static inline void tiny_key_bool(struct tiny_gguf *w, const char *key, uint8_t v)
{
    tiny_key(w, key, 7);
    tiny_put(w, &v, 1);
}

static inline void tiny_array(struct tiny_gguf *w, const char *key, uint32_t type, uint64_t n)
{
    tiny_key(w, key, 9);
    tiny_u32(w, type);
    tiny_u64(w, n);
}

/* Ends the file, opens and deletes it. */
static inline int tiny_open(struct err *e, struct gguf **g, struct tiny_gguf *w)
{
    fseek(w->f, 16, SEEK_SET);
    tiny_u64(w, w->n_key);
    if (fclose(w->f) != 0)
        abort();
    int r = gguf_open(e, g, w->path);
    unlink(w->path);
    return r;
}

/* What differs from the default model; zeros and NULLs leave it out of the file. */
struct other {
    const char *pre, *template;
    const char *const *user; /* entries after the others, user-defined */
    size_t n_user;
    int add_bos; /* 1 true, 0 absent, -1 false */
    uint32_t bos, eos;
};

static inline struct text *open_other(const struct gguf *g, const struct other *o)
{
    struct err e;
    struct tiny_gguf w;
    const struct gguf_str *s;
    const int32_t *kind;
    uint64_t n, n_kind;
    struct gguf *small;
    struct text *t = NULL;
    tiny_begin(&w);
    tiny_key_str(&w, "tokenizer.ggml.model", "gpt2");
    tiny_key_str(&w, "tokenizer.ggml.pre", o->pre);
    if (gguf_strs(&e, g, "tokenizer.ggml.tokens", &s, &n) != 0)
        abort();
    tiny_array(&w, "tokenizer.ggml.tokens", 8, n + o->n_user);
    for (uint64_t i = 0; i < n; i++)
        tiny_str(&w, s[i].p, s[i].n);
    for (size_t i = 0; i < o->n_user; i++)
        tiny_str(&w, o->user[i], strlen(o->user[i]));
    if (gguf_i32s(&e, g, "tokenizer.ggml.token_type", &kind, &n_kind) != 0)
        abort();
    tiny_array(&w, "tokenizer.ggml.token_type", 5, n + o->n_user);
    tiny_put(&w, kind, 4 * n);
    for (size_t i = 0; i < o->n_user; i++)
        tiny_u32(&w, 4);
    if (gguf_strs(&e, g, "tokenizer.ggml.merges", &s, &n) != 0)
        abort();
    tiny_array(&w, "tokenizer.ggml.merges", 8, n);
    for (uint64_t i = 0; i < n; i++)
        tiny_str(&w, s[i].p, s[i].n);
    tiny_key_u32(&w, "tokenizer.ggml.bos_token_id", o->bos);
    tiny_key_u32(&w, "tokenizer.ggml.eos_token_id", o->eos);
    if (o->add_bos != 0)
        tiny_key_bool(&w, "tokenizer.ggml.add_bos_token", o->add_bos > 0);
    if (o->template != NULL)
        tiny_key_str(&w, "tokenizer.chat_template", o->template);
    if (tiny_open(&e, &small, &w) != 0) {
        fprintf(stderr, "%s\n", e.text);
        abort();
    }
    if (text_open(&e, &t, small) != 0)
        fprintf(stderr, "%s\n", e.text);
    gguf_free(small);
    return t;
}

#endif
