/* Plain C: unpacks weights of a packed group. */
#include "kernels/cpu/plain.h"
#include "kernels/layout.h"

static float load_f16(const uint8_t *p)
{
    uint16_t h;
    memcpy(&h, p, 2);
    return f32_of_f16(h);
}

static float load_f32(const uint8_t *p)
{
    float x;
    memcpy(&x, p, 4);
    return x;
}

static void unpack_quants(int16_t q[32], const struct layout *l, const uint8_t *quants, int r)
{
    const uint8_t *lane = quants + 4 * r;
    if (l->hi == 8) {
        for (int k = 0; k < 32; k++)
            q[k] = lane[k / 4 * 64 + k % 4];
    } else {
        for (int k = 0; k < 16; k++) {
            q[k] = lane[k / 4 * 64 + k % 4] & 15;
            q[k + 16] = lane[k / 4 * 64 + k % 4] >> 4;
        }
        for (int k = 0; k < 32 && l->hi == 1; k++)
            q[k] |= (int16_t)((lane[256 + k % 4] >> k / 4 & 1) << 4);
        for (int k = 0; k < 32 && l->hi == 2; k++)
            q[k] |= (int16_t)((lane[256 + k / 16 * 64 + k % 4] >> k % 16 / 4 * 2 & 3) << 4);
    }
    for (int k = 0; k < 32; k++)
        q[k] = (int16_t)(q[k] - l->zero);
}

void plain_unpack(struct plain_block *out, enum kern_type type, const uint8_t *group, int r, int64_t block)
{
    const struct layout *l = kern_layout(type);
    const uint8_t *scale = group + layout_scale_at(l, block);
    unpack_quants(out->q, l, group + layout_quant_at(l, block), r);
    out->m = 0.0f;
    if (!l->head) {
        out->d[0] = out->d[1] = load_f16(scale + 2 * r);
        if (l->has_min)
            out->m = load_f16(scale + 32 + 2 * r);
        return;
    }
    const uint8_t *head = group + layout_head_at(l, block);
    float d = load_f16(head + 2 * r);
    if (l->has_min) {
        out->d[0] = out->d[1] = d * (float)scale[r];
        out->m = -(load_f16(head + 32 + 2 * r) * (float)scale[16 + r]);
    } else {
        const int8_t *sc = (const int8_t *)scale;
        out->d[0] = d * (float)sc[r];
        out->d[1] = d * (float)sc[16 + r];
    }
}

void plain_get_row(float *out, const struct kern_mat *w, int64_t row)
{
    const uint8_t *group = w->data + (size_t)(row / 16) * w->group_bytes;
    int r = (int)(row % 16);
    bool has_min = kern_layout(w->type)->has_min;
    if (kern_type_is_quant(w->type)) {
        for (int64_t b = 0; b < w->cols / 32; b++) {
            struct plain_block blk;
            plain_unpack(&blk, w->type, group, r, b);
            for (int k = 0; k < 32; k++) {
                float v = blk.d[k / 16] * (float)blk.q[k];
                out[b * 32 + k] = has_min ? v + blk.m : v;
            }
        }
        return;
    }
    for (int64_t k = 0; k < w->cols; k++) {
        uint16_t h = 0;
        if (w->type == KERN_F32)
            out[k] = load_f32(group + (k * 16 + r) * 4);
        else if (w->type == KERN_F16)
            out[k] = load_f16(group + (k * 16 + r) * 2);
        else
            out[k] = f32_of_bf16(*(const uint16_t *)memcpy(&h, group + ((k / 2 * 16 + r) * 2 + k % 2) * 2, 2));
    }
}
