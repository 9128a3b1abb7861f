/*
 * An intrusive doubly linked list. A `struct list` is both the head of a list and the node inside an element; the list
 * is circular, so that removal needs no head and no branch. The list owns nothing: elements belong to the caller.
 *
 *     struct list conns;                     the head, list_init() before use
 *     struct conn { struct list node; ... };
 *     list_push_back(&conns, &c->node);
 *     list_each(struct conn, c, &conns, node)
 *         use(c);
 */
#ifndef BASE_LIST_H
#define BASE_LIST_H

#include <stdbool.h>
#include <stddef.h>

struct list {
    struct list *prev, *next;
};

#define list_entry(node, type, member) ((type *)(void *)((char *)(node)-offsetof(type, member)))

/* n: a struct list * that the macro declares. The loop may not remove the current node; list_for_each_safe may. */
#define list_for_each(n, head) for (struct list * (n) = (head)->next; (n) != (head); (n) = (n)->next)
/* The loop may remove and free the current node, and no other. */
#define list_for_each_safe(n, head)                                                                                    \
    for (struct list * (n) = (head)->next, *n##_next_ = (n)->next; (n) != (head);                                      \
         (n) = n##_next_, n##_next_ = (n)->next)

/* The same for elements: v is a `type *` that the macro declares, `member` its node. */
#define list_each(type, v, head, member)                                                                               \
    for (type *v = list_entry((head)->next, type, member); &v->member != (head);                                       \
         v = list_entry(v->member.next, type, member))
#define list_each_safe(type, v, head, member)                                                                          \
    for (type *v = list_entry((head)->next, type, member), *v##_next_ = list_entry(v->member.next, type, member);      \
         &v->member != (head); v = v##_next_, v##_next_ = list_entry(v->member.next, type, member))

/* An empty list, or a node that is in no list. */
static inline void list_init(struct list *l)
{
    l->prev = l->next = l;
}

/* For a head: the list has no element. For a node that was initialised or removed: it is in no list. */
static inline bool list_empty(const struct list *l)
{
    return l->next == l;
}

static inline void list_insert_before(struct list *at, struct list *node)
{
    node->prev = at->prev;
    node->next = at;
    at->prev->next = node;
    at->prev = node;
}

static inline void list_push_back(struct list *head, struct list *node)
{
    list_insert_before(head, node);
}

static inline void list_push_front(struct list *head, struct list *node)
{
    list_insert_before(head->next, node);
}

/* The node is in no list afterwards, and may be removed again without effect. */
static inline void list_remove(struct list *node)
{
    node->prev->next = node->next;
    node->next->prev = node->prev;
    list_init(node);
}

/* Removes the first node and returns it; NULL: the list is empty. */
static inline struct list *list_pop_front(struct list *head)
{
    struct list *n = head->next;
    if (n == head)
        return NULL;
    list_remove(n);
    return n;
}

/* Appends all of `from` to `to`; `from` is empty afterwards. */
static inline void list_append(struct list *to, struct list *from)
{
    if (list_empty(from))
        return;
    from->next->prev = to->prev;
    to->prev->next = from->next;
    from->prev->next = to;
    to->prev = from->prev;
    list_init(from);
}

#endif
