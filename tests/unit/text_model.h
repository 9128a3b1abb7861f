/* The model that unit tests of lib/text read. */
#ifndef TEXT_MODEL_H
#define TEXT_MODEL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "model/gguf.h"
#include "model/model.h"

/* The model that tests run on: PHASEPIPE_TEST_MODEL, else the default one. */
static inline struct gguf *default_model(void)
{
    char path[4096];
    struct err e;
    struct gguf *g = NULL;
    const char *named = getenv("PHASEPIPE_TEST_MODEL");
    if (named == NULL && model_default_path(&e, path, sizeof path) != 0)
        fail_msg("%s", e.text);
    if (gguf_open(&e, &g, named != NULL ? named : path) != 0)
        fail_msg("%s", e.text);
    return g;
}

#endif
