/* Private to lib/wire: macros for the rows of the tables (schema.c, schema_sched.c, schema_store.c). */
#ifndef WIRE_FIELDS_H
#define WIRE_FIELDS_H

#include "wire/schema.h"

#define AT(S, m) .off = (uint16_t)offsetof(struct S, m)
#define ALONE .n_off = FIELD_ALONE
#define COUNTED(S, m) .n_off = (uint16_t)offsetof(struct S, m)
#define N_OF(a) (uint32_t)(sizeof(a) / sizeof(a)[0])

#define INT(S, key, ty, m, l, h, ...)                                                                                  \
    {                                                                                                                  \
        .name = key, .type = ty, AT(S, m), ALONE, .lo = l, .hi = h, ##__VA_ARGS__                                      \
    }
#define U32(S, key, m, ...) INT(S, key, TY_U32, m, 0, UINT32_MAX, ##__VA_ARGS__)
#define U64(S, key, m, ...) INT(S, key, TY_U64, m, 0, UINT64_MAX, ##__VA_ARGS__)
#define SECTION(S, key, has, r)                                                                                        \
    {                                                                                                                  \
        .name = key, .type = TY_SECTION, COUNTED(S, has), .rec = r                                                     \
    }
#define F32(S, key, m, l, h, ...)                                                                                      \
    {                                                                                                                  \
        .name = key, .type = TY_F32, AT(S, m), ALONE, .flo = l, .fhi = h, ##__VA_ARGS__                                \
    }
#define BOOL(S, key, m)                                                                                                \
    {                                                                                                                  \
        .name = key, .type = TY_BOOL, AT(S, m), ALONE, .hi = 1                                                         \
    }
#define STR(S, key, m, max, ...)                                                                                       \
    {                                                                                                                  \
        .name = key, .type = TY_STR, AT(S, m), ALONE, .hi = max, ##__VA_ARGS__                                         \
    }
#define NAME(S, key, m, ...)                                                                                           \
    {                                                                                                                  \
        .name = key, .type = TY_NAME, AT(S, m), ALONE, .hi = WIRE_NAME_BYTES_MAX, ##__VA_ARGS__                        \
    }
#define BIN(S, key, m, min, max, ...)                                                                                  \
    {                                                                                                                  \
        .name = key, .type = TY_BIN, AT(S, m), ALONE, .lo = min, .hi = max, ##__VA_ARGS__                              \
    }
#define LIST(S, key, ty, m, count, max, ...)                                                                           \
    {                                                                                                                  \
        .name = key, .type = ty, AT(S, m), COUNTED(S, count), .hi = max, ##__VA_ARGS__                                 \
    }
#define REQ .required = true

#define KIND(name, fields, S)                                                                                          \
    {                                                                                                                  \
        name, fields, N_OF(fields), sizeof(struct S), false, offsetof(struct S, extra)                                 \
    }

/* The KV identity: the same fields in hello's section and in kv_open. */
#define KV_KIND(S)                                                                                                     \
    BIN(S, "model", model_fp, 32, 32, REQ), NAME(S, "type", kv_type, REQ), NAME(S, "arith", arith, REQ),               \
        NAME(S, "layout", layout, REQ), INT(S, "n_layer", TY_U32, n_layer, 1, 65536, REQ),                             \
        INT(S, "n_kv_head", TY_U32, n_kv_head, 1, 65536, REQ), INT(S, "head_dim", TY_U32, head_dim, 1, 65536, REQ)

#endif
