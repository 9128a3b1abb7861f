/*
 * Growth of an array that its owner keeps as three fields: pointer, count, capacity in elements.
 *
 *     rc = vec_reserve(e, &v->ids, &v->cap, v->n + 1, sizeof *v->ids, "the ids of an answer");
 *     if (!rc)
 *         v->ids[v->n++] = id;
 *
 * The capacity at least doubles, so that appending n elements costs O(n). New elements are not initialised. On failure
 * the array and its capacity are unchanged. The owner frees the pointer with free().
 */
#ifndef BASE_VEC_H
#define BASE_VEC_H

#include <stdbool.h>
#include <stddef.h>

#include "err/err.h"

/* Called by the two functions below if n elements do not fit. */
int vec_reserve_more(struct err *e, void *array, size_t *cap, size_t n, size_t elem_size, const char *what);
bool vec_grow_more(void *array, size_t *cap, size_t n, size_t elem_size);

/* array: address of the pointer to the elements (NULL while *cap is 0). n: elements that must fit. ERR_SYS "out of
 * memory for WHAT (N bytes)". */
static inline int vec_reserve(struct err *e, void *array, size_t *cap, size_t n, size_t elem_size, const char *what)
{
    return n <= *cap ? 0 : vec_reserve_more(e, array, cap, n, elem_size, what);
}

/* The same for callers that report the failure in another way. False: no memory. */
static inline bool vec_grow(void *array, size_t *cap, size_t n, size_t elem_size)
{
    return n <= *cap || vec_grow_more(array, cap, n, elem_size);
}

#endif
