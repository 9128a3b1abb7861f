/* JSON that is written as it goes, into a buffer that grows: for what is sent with every token. */
#ifndef API_JSON_WRITE_H
#define API_JSON_WRITE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

struct json_write {
    char *p; /* owned; json_write_free */
    size_t n, cap;
    bool broken; /* no memory: what is in it is not whole */
};

void json_write_free(struct json_write *w);
void json_write_clear(struct json_write *w); /* empty, memory kept */

void json_write_raw(struct json_write *w, const char *p, size_t n);
void json_write_lit(struct json_write *w, const char *text); /* as it stands, of a NUL-terminated text */
void json_write_u64(struct json_write *w, uint64_t v);
void json_write_i64(struct json_write *w, int64_t v);
/* As short as it is exact for a float; what is not finite is null. */
void json_write_f32(struct json_write *w, float v);
/* In quotes, escaped as RFC 8259 demands; bytes that are no UTF-8 become U+FFFD. */
void json_write_string(struct json_write *w, const char *p, size_t n);
/* The same without quotes. */
void json_write_escaped(struct json_write *w, const char *p, size_t n);
/* Numbers with commas between them, no brackets. */
void json_write_u32s(struct json_write *w, const uint32_t *v, size_t n);
void json_write_bytes(struct json_write *w, const char *p, size_t n);
/* A value of jansson, compact. */
void json_write_value(struct json_write *w, const json_t *v);

#endif
