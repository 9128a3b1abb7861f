/* Model info, and served model names. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <sodium.h>

#include "api/api_impl.h"

#define NAME_BYTES_MAX 256

/* ---- the model ---- */

static char *copy_of(const struct gguf *g, const char *key)
{
    struct err e;
    struct gguf_str s;
    return !gguf_string(&e, g, key, &s) && s.n ? strndup(s.p, s.n) : NULL;
}

/* Counts the parameters; finds the type of most of them, without tensors of one row (norms). */
static void count(struct api *a)
{
    const struct gguf *g = a->gguf;
    uint64_t of[64] = {0}, best = 0, n = gguf_tensor_count(g);
    const char *name = NULL;
    for (uint64_t i = 0; i < n; i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        uint64_t values = t->dim[0] * t->dim[1] * t->dim[2] * t->dim[3];
        a->model.n_param += values;
        if (t->type < 64 && t->n_dim > 1)
            of[t->type] += values;
    }
    for (uint32_t t = 0; t < 64; t++)
        if (of[t] > best && gguf_type_name(t)) {
            best = of[t];
            name = gguf_type_name(t);
        }
    snprintf(a->quant, sizeof a->quant, "%s", name ? name : "unknown");
}

/* Identifies the contents without reading gigabytes: vocabulary, tensor names, types and offsets, file size. */
static void digest(struct api *a)
{
    crypto_hash_sha256_state s;
    uint8_t sum[crypto_hash_sha256_BYTES];
    const struct gguf *g = a->gguf;
    uint64_t n = gguf_tensor_count(g), bytes = gguf_file_bytes(g);
    crypto_hash_sha256_init(&s);
    crypto_hash_sha256_update(&s, text_fingerprint(a->text), 32);
    crypto_hash_sha256_update(&s, (const uint8_t *)&bytes, sizeof bytes);
    for (uint64_t i = 0; i < n; i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        crypto_hash_sha256_update(&s, (const uint8_t *)t->name.p, t->name.n);
        crypto_hash_sha256_update(&s, (const uint8_t *)&t->type, sizeof t->type);
        crypto_hash_sha256_update(&s, (const uint8_t *)&t->offset, sizeof t->offset);
    }
    crypto_hash_sha256_final(&s, sum);
    sodium_bin2hex(a->digest, sizeof a->digest, sum, sizeof sum);
}

static int facts(struct err *e, struct api *a)
{
    struct api_model *m = &a->model;
    char key[160];
    struct stat st;
    const struct gguf *g = a->gguf;
    uint64_t n_row = 0;
    a->arch = copy_of(g, "general.architecture");
    a->chat_template = copy_of(g, "tokenizer.chat_template");
    a->path = strdup(gguf_path(g));
    if (!a->arch || !a->path)
        return err_nomem(e, "the model's facts", 0);
    snprintf(key, sizeof key, "%.100s.context_length", a->arch);
    if (gguf_u64(e, g, key, &m->context, 1, UINT32_MAX))
        return e->code;
    a->file_context = m->context;
    const struct gguf_tensor *rows = gguf_tensor_find(g, "token_embd.weight");
    n_row = rows ? rows->dim[1] : 0;
    m->vocab = n_row > text_n_token(a->text) ? n_row : text_n_token(a->text);
    m->bytes = gguf_file_bytes(g);
    m->created = fstat(gguf_fd(g), &st) ? 0 : (int64_t)st.st_mtime;
    count(a);
    digest(a);
    m->gguf = a->gguf;
    m->text = a->text;
    m->path = a->path;
    m->quant = a->quant;
    m->digest = a->digest;
    m->arch = a->arch;
    m->chat_template = a->chat_template;
    return 0;
}

/* ---- names ---- */

static int name_check(struct err *e, const char *name)
{
    size_t n = strlen(name);
    if (n == 0 || n > NAME_BYTES_MAX)
        return err_set(e, ERR_USAGE, "--served-model-name: %zu bytes, expected 1 to %d", n, NAME_BYTES_MAX);
    for (const char *p = name; *p; p++)
        if ((unsigned char)*p <= ' ' || *p == 127 || *p == '"' || *p == '\\')
            return err_set(e, ERR_USAGE,
                           "--served-model-name: '%.60s' contains a space, control character, quote or backslash",
                           name);
    return 0;
}

/* "dir/SmolLM2.Q4_1.gguf" gets the name SmolLM2.Q4_1. */
static char *name_of_file(const char *path)
{
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
    size_t n = strlen(base);
    if (n > 5 && !strcmp(base + n - 5, ".gguf"))
        n -= 5;
    char *name = strndup(base, n < NAME_BYTES_MAX ? n : NAME_BYTES_MAX);
    for (char *p = name; p && *p; p++)
        if ((unsigned char)*p <= ' ' || *p == 127 || *p == '"' || *p == '\\')
            *p = '_';
    return name;
}

static int names(struct err *e, struct api *a)
{
    size_t n = a->o.n_name ? a->o.n_name : 1;
    a->name = calloc(n + 1, sizeof *a->name);
    if (!a->name)
        return err_nomem(e, "names", n);
    for (size_t i = 0; i < n; i++) {
        if (a->o.n_name && name_check(e, a->o.name[i]))
            return e->code;
        a->name[i] = a->o.n_name ? strdup(a->o.name[i]) : name_of_file(a->o.model);
        if (!a->name[i])
            return err_nomem(e, "names", n);
        a->n_name++;
    }
    a->model.name = a->name[0];
    return 0;
}

static bool same_name(const char *own, const char *name, bool ollama)
{
    size_t n = strlen(name), m = strlen(own);
    if (!strcmp(own, name))
        return true;
    if (!ollama)
        return false;
    if (n > 7 && !strcmp(name + n - 7, ":latest"))
        n -= 7;
    if (m > 7 && !strcmp(own + m - 7, ":latest"))
        m -= 7;
    return n == m && !strncasecmp(own, name, n);
}

bool api_serves(const struct api *a, const char *name, bool ollama)
{
    for (size_t i = 0; i < a->n_name; i++)
        if (same_name(a->name[i], name, ollama))
            return true;
    return false;
}

int api_model_info_open(struct err *e, struct api *a)
{
    if (sodium_init() < 0)
        return err_set(e, ERR_SYS, "libsodium cannot start");
    int rc = gguf_open(e, &a->gguf, a->o.model);
    rc = rc ? rc : text_open(e, &a->text, a->gguf);
    rc = rc ? rc : names(e, a);
    return rc ? rc : facts(e, a);
}

void api_model_info_close(struct api *a)
{
    for (size_t i = 0; i < a->n_name; i++)
        free(a->name[i]);
    free(a->name);
    free(a->arch);
    free(a->chat_template);
    free(a->path);
    text_free(a->text);
    gguf_free(a->gguf);
}
