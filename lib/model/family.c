/* The model families. Their differences are data in this table, not code. */
#include <string.h>

#include "model/model_impl.h"

static const struct model_family families[] = {
    /* The file stores the rows of q and k permuted, so that rope pairs are neighbours. */
    {.arch = "llama", .neox = false, .qkv_bias = false},
};

const struct model_family *model_family_find(struct gguf_str arch)
{
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++)
        if (strlen(families[i].arch) == arch.n && memcmp(families[i].arch, arch.p, arch.n) == 0)
            return &families[i];
    return NULL;
}

size_t model_family_names(char *out, size_t n)
{
    size_t used = 0;
    out[0] = '\0';
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++) {
        size_t len = strlen(families[i].arch);
        if (used + len + 3 > n)
            break;
        if (i) {
            memcpy(out + used, ", ", 2);
            used += 2;
        }
        memcpy(out + used, families[i].arch, len + 1);
        used += len;
    }
    return used;
}
