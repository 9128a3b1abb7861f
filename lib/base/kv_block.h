/* The unit in which KV is addressed, shared and transferred: every layout, digest and frame counts in such blocks. */
#ifndef BASE_KV_BLOCK_H
#define BASE_KV_BLOCK_H

#define KV_BLOCK 32  /* tokens */
#define KV_DIGEST 32 /* bytes of the digest that names a full block */

#endif
