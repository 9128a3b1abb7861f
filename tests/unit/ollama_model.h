/* The default model as served in the tests of the Ollama dialect. */
#ifndef OLLAMA_MODEL_H
#define OLLAMA_MODEL_H

#include "api/ollama.h"
#include "unit/text_model.h"

static struct api_model model;

static inline int open_model(void **state)
{
    struct err e;
    struct gguf_str s;
    struct text *t;
    struct gguf *g = default_model();
    (void)state;
    if (text_open(&e, &t, g) || gguf_string(&e, g, "tokenizer.chat_template", &s))
        fail_msg("%s", e.text);
    model = (struct api_model){
        .gguf = g,
        .text = t,
        .name = "smollm2",
        .path = gguf_path(g),
        .context = 8192,
        .vocab = text_n_token(t),
        .bytes = gguf_file_bytes(g),
        .n_param = 134515008,
        .quant = "Q4_1",
        .digest = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff",
        .arch = "llama",
        .created = 1700000000,
        .chat_template = strndup(s.p, s.n),
    };
    return 0;
}

static inline int close_model(void **state)
{
    (void)state;
    free((char *)model.chat_template);
    text_free((struct text *)model.text);
    gguf_free((struct gguf *)model.gguf);
    return 0;
}

/* The keys of an object in order of insertion. */
static inline void expect_keys(const json_t *o, const char *want)
{
    char got[400] = "";
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)o, key, v)
    {
        size_t n = strlen(got);
        snprintf(got + n, sizeof got - n, "%s%s", n ? " " : "", key);
    }
    assert_string_equal(got, want);
}

#endif
