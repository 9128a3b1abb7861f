#include "base/vec.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_BYTES 128 /* size of the first allocation, at least one element */

/* New capacity in elements: twice the old one, or n if that is more. */
static size_t new_cap(size_t cap, size_t n, size_t elem_size)
{
    size_t to = cap ? cap : FIRST_BYTES / elem_size;
    to = cap && to <= SIZE_MAX / elem_size / 2 ? 2 * to : to;
    return to > n ? to : n;
}

bool vec_grow_more(void *array, size_t *cap, size_t n, size_t elem_size)
{
    void *old;
    size_t to = new_cap(*cap, n, elem_size);
    if (to > PTRDIFF_MAX / elem_size)
        return false;
    memcpy(&old, array, sizeof old); /* `array` points to a pointer of any type */
    void *p = realloc(old, to * elem_size);
    if (!p)
        return false;
    memcpy(array, &p, sizeof p);
    *cap = to;
    return true;
}

int vec_reserve_more(struct err *e, void *array, size_t *cap, size_t n, size_t elem_size, const char *what)
{
    if (vec_grow_more(array, cap, n, elem_size))
        return 0;
    return err_nomem(e, what, n > SIZE_MAX / elem_size ? SIZE_MAX : n * elem_size);
}
