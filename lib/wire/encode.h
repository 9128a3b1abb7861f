/* Private to lib/wire: encoding into a buffer that is used again. The only header here that shows msgpack-c. */
#ifndef WIRE_ENCODE_H
#define WIRE_ENCODE_H

#include <msgpack.h>

#include "wire/schema.h"

/* Appends the map of a frame. */
int wire_encode_into(struct err *e, msgpack_sbuffer *buf, const struct wire_frame *f);

#endif
