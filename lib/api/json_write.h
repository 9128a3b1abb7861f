/* Writing of JSON without a tree, for what is sent with every token. Out of memory sets w->failed. */
#ifndef API_JSON_WRITE_H
#define API_JSON_WRITE_H

#include <stdint.h>

#include <jansson.h>

#include "base/str.h"

void json_write_u64(struct str *w, uint64_t v);
void json_write_i64(struct str *w, int64_t v);
/* 9 significant digits, which are exact for a float; null unless finite. */
void json_write_f32(struct str *w, float v);
/* Writes a string in quotes, escaped as RFC 8259 requires; invalid UTF-8 becomes U+FFFD. */
void json_write_string(struct str *w, const char *p, size_t n);
/* The same without quotes. */
void json_write_escaped(struct str *w, const char *p, size_t n);
/* Numbers with commas between them, no brackets. */
void json_write_u32s(struct str *w, const uint32_t *v, size_t n);
void json_write_bytes(struct str *w, const char *p, size_t n);
/* A value of jansson, compact. */
void json_write_value(struct str *w, const json_t *v);

#endif
