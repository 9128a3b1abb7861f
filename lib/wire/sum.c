#define XXH_STATIC_LINKING_ONLY /* for a state on the stack */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "wire/wire.h"

uint64_t wire_sum(const void *p, size_t n)
{
    return XXH3_64bits(p, n);
}

uint64_t wire_sumv(const struct iovec *iov, int n_iov)
{
    XXH3_state_t state;
    XXH3_64bits_reset(&state);
    for (int i = 0; i < n_iov; i++)
        XXH3_64bits_update(&state, iov[i].iov_base, iov[i].iov_len);
    return XXH3_64bits_digest(&state);
}
