/*
 * Private to lib/wire: one msgpack value outside the table (an unknown field) as JSON and back, to the byte. Where
 * plain JSON cannot say it, a map of one key does: {"int":"N"} beyond 53 bits, {"base64":…} for a bin, {"msgpack":…} in
 * base64 for all else (float32, ext, keys that are not text, a longer encoding than needed, a map that looks like
 * these).
 */
#ifndef WIRE_VALUE_JSON_H
#define WIRE_VALUE_JSON_H

#include <jansson.h>
#include <msgpack.h>

#include "wire/cursor.h"
#include "wire/schema.h"

/* NULL: no memory. The bytes are one well-formed value. */
json_t *value_to_json(const uint8_t *p, size_t n);
/* NULL, or what is wrong in words. */
const char *value_from_json(msgpack_packer *pk, const json_t *j, unsigned depth);

json_t *base64_json(const uint8_t *p, size_t n); /* a JSON string */
/* *p: malloc'd. NULL, or what is wrong in words. */
const char *base64_bytes(uint8_t **p, size_t *n, const json_t *j);
/* {key: value}, stealing value. */
json_t *tagged_json(const char *key, json_t *value);

/* Text as a JSON string, or {"base64":…} where it is not UTF-8. */
json_t *text_json(const char *p, size_t n);
const char *text_bytes(uint8_t **p, size_t *n, const json_t *j);

/* A double that prints in 15 digits or fewer and rounds to f. */
json_t *float_json(float f);

#endif
