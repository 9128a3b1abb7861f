/* Private to lib/wire: encoding into a msgpack-c buffer that the caller reuses. */
#ifndef WIRE_ENCODE_H
#define WIRE_ENCODE_H

#include <msgpack.h>

#include "wire/schema.h"

/* Appends the map of a frame. */
int wire_encode_into(struct err *e, msgpack_sbuffer *buf, const struct wire_frame *f);

#endif
