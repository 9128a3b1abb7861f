#define XXH_INLINE_ALL
#include <xxhash.h>

#include "wire/wire.h"

uint64_t wire_sum(const void *p, size_t n)
{
    return XXH3_64bits(p, n);
}
