/*
 * Private to lib/wire: converts one msgpack value outside the table (an unknown field) to JSON and back without a
 * change of any byte. A value that plain JSON cannot represent becomes a map of one key: {"int":"N"} beyond 53 bits,
 * {"base64":…} for a bin, {"msgpack":…} in base64 otherwise (float32, ext, keys that are not text, an encoding that is
 * longer than necessary, a map that looks like one of these).
 */
#ifndef WIRE_VALUE_JSON_H
#define WIRE_VALUE_JSON_H

#include <jansson.h>
#include <msgpack.h>

#include "wire/cursor.h"
#include "wire/schema.h"

/* p: one well-formed value. NULL: no memory. */
json_t *value_to_json(const uint8_t *p, size_t n);
/* NULL, or an error text. */
const char *value_from_json(msgpack_packer *pk, const json_t *j, unsigned depth);

json_t *base64_json(const uint8_t *p, size_t n); /* a JSON string */
/* *p: malloc'd. NULL, or an error text. */
const char *base64_bytes(uint8_t **p, size_t *n, const json_t *j);
/* {key: value}; takes ownership of value, which may be NULL. NULL: no memory. */
json_t *tagged_json(const char *key, json_t *value);

/* Text as a JSON string, or {"base64":…} if it is not UTF-8. */
json_t *text_json(const char *p, size_t n);
const char *text_bytes(uint8_t **p, size_t *n, const json_t *j);

/* A double that prints in 15 digits or fewer and rounds to f. */
json_t *float_json(float f);

#endif
