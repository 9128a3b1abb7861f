/* Opens a model: header, shape, plan, packed bytes, and the pointers into them. */
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "model/model_impl.h"

static struct kern_mat mat(const struct model *m, const struct pack_item *it)
{
    return (struct kern_mat){
        .type = it->dst_type,
        .rows = it->rows,
        .cols = it->cols,
        .group_bytes = kern_group_bytes(it->dst_type, it->cols),
        .data = (const uint8_t *)m->map + it->offset,
    };
}

static const float *vec(const struct model *m, const struct pack_item *it)
{
    return it->src ? (const float *)(const void *)((const uint8_t *)m->map + it->offset) : NULL;
}

static int bind(struct err *e, struct model *m, const struct pack_plan *p)
{
    size_t n = (size_t)m->c.n_layer;
    struct model_layer *layer = calloc(n, sizeof *layer);
    if (!layer)
        return err_nomem(e, "layers", n * sizeof *layer);
    m->layer = layer;
    m->embed = mat(m, &p->item[PACK_EMBED]);
    m->output = mat(m, &p->item[m->c.tied ? PACK_EMBED : PACK_OUTPUT]);
    m->output_norm = vec(m, &p->item[PACK_OUTPUT_NORM]);
    for (size_t i = 0; i < n; i++) {
        const struct pack_item *it = &p->item[PACK_TOP + i * PACK_LAYER];
        layer[i] = (struct model_layer){
            .attn_norm = vec(m, &it[PACK_ATTN_NORM]),
            .ffn_norm = vec(m, &it[PACK_FFN_NORM]),
            .wq = mat(m, &it[PACK_Q]),
            .wk = mat(m, &it[PACK_K]),
            .wv = mat(m, &it[PACK_V]),
            .wo = mat(m, &it[PACK_O]),
            .bq = vec(m, &it[PACK_BQ]),
            .bk = vec(m, &it[PACK_BK]),
            .bv = vec(m, &it[PACK_BV]),
            .gate = mat(m, &it[PACK_GATE]),
            .up = mat(m, &it[PACK_UP]),
            .down = mat(m, &it[PACK_DOWN]),
        };
    }
    for (uint64_t i = 0; i < p->n; i++)
        m->weight_bytes += p->item[i].bytes;
    return 0;
}

/* If the cache cannot be used (no room, no permission, no home directory), the weights are packed into private
 * memory. */
static int map_weights(struct err *e, struct model *m, struct pack_plan *p, const struct model_opts *o)
{
    int rc = cache_map(e, m, p, o);
    if (rc != ERR_SYS)
        return rc;
    m->not_shared = *e;
    char line[600];
    snprintf(line, sizeof line, "the packed weights are not shared with other processes: %s", e->text);
    if (o && o->log)
        o->log(o->log_arg, line);
    return cache_map_private(e, m, p, o);
}

static int open_file(struct err *e, struct model *m, const struct model_opts *o)
{
    char path[4096];
    const char *name = o ? o->path : NULL;
    int rc = name ? 0 : model_default_path(e, path, sizeof path);
    if (!rc)
        rc = gguf_open(e, &m->gguf, name ? name : path);
    if (!rc)
        m->path = gguf_path(m->gguf);
    return rc ? rc : model_config_read(e, &m->c, m->gguf);
}

int model_open(struct err *e, struct model **out, const struct model_opts *o)
{
    if (sodium_init() < 0)
        return err_set(e, ERR_SYS, "libsodium failed to initialise");
    struct model *m = calloc(1, sizeof *m);
    if (!m)
        return err_nomem(e, "a model", sizeof *m);
    struct pack_plan p = {0};
    int rc = open_file(e, m, o);
    if (!rc)
        rc = plan_make(e, &p, &m->c, m->gguf);
    if (!rc)
        rc = map_weights(e, m, &p, o);
    if (!rc)
        rc = bind(e, m, &p);
    plan_free(&p);
    if (rc) {
        model_free(m);
        return rc;
    }
    *out = m;
    return 0;
}

void model_free(struct model *m)
{
    if (!m)
        return;
    if (m->map)
        munmap(m->map, m->map_bytes);
    if (m->shared)
        close(m->map_fd);
    free((void *)(uintptr_t)m->layer);
    gguf_free(m->gguf);
    free(m);
}
