/* Writes GGUF files for tests, valid or invalid: every field can have any value. Format: ggml's docs/gguf.md. */
#ifndef TESTS_GGUF_BUILD_H
#define TESTS_GGUF_BUILD_H

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/vec.h"

struct bytes {
    uint8_t *p;
    size_t n, cap;
};

struct gguf_build {
    struct bytes kv, info, data;
    uint64_t n_kv, n_tensor;
    uint32_t version;
};

static inline void put_bytes(struct bytes *b, const void *p, size_t n)
{
    assert_true(vec_grow(&b->p, &b->cap, b->n + n + 1, 1));
    if (n)
        memcpy(b->p + b->n, p, n);
    b->n += n;
}

static inline void put_u32(struct bytes *b, uint32_t v)
{
    put_bytes(b, &v, sizeof v);
}

static inline void put_u64(struct bytes *b, uint64_t v)
{
    put_bytes(b, &v, sizeof v);
}

static inline void put_str(struct bytes *b, const char *s)
{
    put_u64(b, strlen(s));
    put_bytes(b, s, strlen(s));
}

/* Adds a pair of any type, followed by any bytes. */
static inline void add_kv(struct gguf_build *g, const char *key, uint32_t type, const void *p, size_t n)
{
    put_str(&g->kv, key);
    put_u32(&g->kv, type);
    put_bytes(&g->kv, p, n);
    g->n_kv++;
}

static inline void add_u32(struct gguf_build *g, const char *key, uint32_t v)
{
    add_kv(g, key, 4, &v, sizeof v);
}

static inline void add_f32(struct gguf_build *g, const char *key, float v)
{
    add_kv(g, key, 6, &v, sizeof v);
}

static inline void add_string(struct gguf_build *g, const char *key, const char *s)
{
    add_kv(g, key, 8, NULL, 0);
    put_str(&g->kv, s);
}

/* Adds an array's header; the caller appends its elements to g->kv. */
static inline void add_array(struct gguf_build *g, const char *key, uint32_t etype, uint64_t n)
{
    add_kv(g, key, 9, NULL, 0);
    put_u32(&g->kv, etype);
    put_u64(&g->kv, n);
}

/* Adds a tensor's entry without data. */
static inline void add_info(struct gguf_build *g, const char *name, uint32_t type, uint32_t n_dim, const uint64_t *dim,
                            uint64_t offset)
{
    put_str(&g->info, name);
    put_u32(&g->info, n_dim);
    for (uint32_t i = 0; i < n_dim; i++)
        put_u64(&g->info, dim[i]);
    put_u32(&g->info, type);
    put_u64(&g->info, offset);
    g->n_tensor++;
}

/* Adds an entry and its data, at a multiple of 32. rows 0: a vector. */
static inline void add_tensor(struct gguf_build *g, const char *name, uint32_t type, uint64_t cols, uint64_t rows,
                              const void *data, size_t n)
{
    static const uint8_t zero[32];
    put_bytes(&g->data, zero, (32 - g->data.n % 32) % 32);
    add_info(g, name, type, rows ? 2 : 1, (const uint64_t[]){cols, rows}, g->data.n);
    put_bytes(&g->data, data, n);
}

static inline void build_free(struct gguf_build *g)
{
    free(g->kv.p);
    free(g->info.p);
    free(g->data.p);
    *g = (struct gguf_build){0};
}

static inline void write_file(const char *path, const void *p, size_t n)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(p, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static inline struct bytes build_bytes(const struct gguf_build *g)
{
    static const uint8_t zero[32];
    struct bytes b = {0};
    put_bytes(&b, "GGUF", 4);
    put_u32(&b, g->version ? g->version : 3);
    put_u64(&b, g->n_tensor);
    put_u64(&b, g->n_kv);
    put_bytes(&b, g->kv.p, g->kv.n);
    put_bytes(&b, g->info.p, g->info.n);
    put_bytes(&b, zero, (32 - b.n % 32) % 32);
    put_bytes(&b, g->data.p, g->data.n);
    return b;
}

static inline void build_write(const struct gguf_build *g, const char *path)
{
    struct bytes b = build_bytes(g);
    write_file(path, b.p, b.n);
    free(b.p);
}

static inline void assert_text_has(const char *text, const char *part)
{
    if (!strstr(text, part))
        fail_msg("\"%s\" does not contain \"%s\"", text, part);
}

/* Path of the default model: from the environment, or in the cache directory. If it does not exist, the test fails. */
static inline const char *default_model(void)
{
    static char path[4096];
    const char *named = getenv("PHASEPIPE_TEST_MODEL"), *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (named)
        snprintf(path, sizeof path, "%s", named);
    else if (!path[0])
        snprintf(path, sizeof path, "%s%s/phasepipe/SmolLM2-135M-Instruct.Q4_1.gguf",
                 xdg    ? xdg
                 : home ? home
                        : "",
                 xdg ? "" : "/.cache");
    if (access(path, R_OK) != 0)
        fail_msg("%s does not exist: scripts/get-model fetches it", path);
    return path;
}

#endif
