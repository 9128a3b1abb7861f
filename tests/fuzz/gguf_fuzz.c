/* Fuzzes the GGUF reader and its users: model shape, tensor plan, and every key read as every type. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "model/model_impl.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_as_all(const struct gguf *g, const char *key)
{
    struct err e;
    uint64_t u, n;
    double f;
    bool b;
    struct gguf_str s;
    const struct gguf_str *strs;
    const float *f32;
    const int32_t *i32;
    volatile uint64_t sum = 0; /* reads every byte, for the sanitizer */
    (void)sum;
    if (gguf_u64(&e, g, key, &u, 3, 1u << 20) == 0)
        assert(u >= 3 && u <= 1u << 20);
    gguf_f64(&e, g, key, &f);
    gguf_bool(&e, g, key, &b);
    if (gguf_string(&e, g, key, &s) == 0)
        for (size_t i = 0; i < s.n; i++)
            sum += (uint8_t)s.p[i];
    if (gguf_strs(&e, g, key, &strs, &n) == 0)
        for (uint64_t i = 0; i < n; i++)
            for (size_t k = 0; k < strs[i].n; k++)
                sum += (uint8_t)strs[i].p[k];
    if (gguf_f32s(&e, g, key, &f32, &n) == 0)
        for (uint64_t i = 0; i < n; i++)
            sum += f32[i] > 0;
    if (gguf_i32s(&e, g, key, &i32, &n) == 0)
        for (uint64_t i = 0; i < n; i++)
            sum += (uint32_t)i32[i];
}

static void read_keys(const struct gguf *g)
{
    for (uint64_t i = 0; i < g->n_kv; i++) {
        struct gguf_str k = g->kv[i].key;
        char *key = malloc(k.n + 1);
        assert(key);
        memcpy(key, k.p, k.n);
        key[k.n] = '\0';
        read_as_all(g, key);
        free(key);
    }
}

/* Tensors lie in the file; the ends of each can be read. */
static void read_tensors(const struct gguf *g)
{
    for (uint64_t i = 0; i < gguf_tensor_count(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        uint8_t byte;
        struct err e;
        assert(t->offset <= gguf_file_bytes(g) && t->bytes <= gguf_file_bytes(g) - t->offset && t->bytes > 0);
        assert(gguf_read(&e, g, t, t->bytes - 1, &byte, 1) == 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int fd = memfd_create("gguf", MFD_CLOEXEC);
    assert(fd >= 0 && write(fd, data, size) == (ssize_t)size);
    char path[40];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    struct err e = {0};
    struct gguf *g = NULL;
    int rc = gguf_open(&e, &g, path);
    assert(rc == 0 || e.text[0]);
    if (!rc) {
        read_keys(g);
        read_tensors(g);
        struct model_config c;
        struct pack_plan p;
        if (model_config_read(&e, &c, g) == 0 && plan_make(&e, &p, &c, g) == 0) {
            assert(p.total_bytes > 0);
            plan_free(&p);
        }
        gguf_free(g);
    }
    close(fd);
    return 0;
}
