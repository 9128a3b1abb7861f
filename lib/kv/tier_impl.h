/*
 * Private to lib/kv: the thread that reads and writes the file of a tier. It knows offsets and bytes only. The caller
 * (tier.c) owns the index, so look-ups do not wait for a slow disk.
 */
#ifndef KV_TIER_IMPL_H
#define KV_TIER_IMPL_H

#include <sys/types.h>

#include "base/list.h"
#include "kv/tier.h"

#define TIER_PAGE 4096 /* size of the head of the file, and of the head of each record */

enum disk_what { DISK_READ = 1, DISK_WRITE, DISK_ERASE };

struct disk_job { /* owned by the caller, from disk_submit to disk_done by the disk */
    struct list node;
    enum disk_what what;
    uint32_t rec;
    uint64_t stamp; /* of the record when the job was created; a difference means that the record was reused */
    off_t at;       /* of the record in the file */
    struct kv_tier_block b;
    uint8_t head[TIER_PAGE]; /* written before the bytes */
    uint8_t *bytes;          /* [data_bytes] */
    bool whole;              /* result: all bytes were read and match the checksum, or all were written */
    int error;               /* errno of a write that failed */
};

struct disk;

/* fd is borrowed. The thread takes no signals. */
int disk_open(struct err *e, struct disk **out, int fd, size_t data_bytes);
/* Ends the thread and frees d. False: the thread is still blocked in the disk after timeout_ms; it closes the file and
 * frees d when it ends. */
bool disk_close(struct disk *d, int timeout_ms);
void disk_job_free(struct disk_job *j);

/* Queues a job; the disk owns it. Reads are done before writes, each in order. */
void disk_submit(struct disk *d, struct disk_job *j);
/* Adds a job that needs no disk to the finished ones. */
void disk_complete(struct disk *d, struct disk_job *j);
struct disk_job *disk_done(struct disk *d); /* the next finished job; NULL: none */
int disk_fd(const struct disk *d);          /* readable while a job is finished */
/* Blocks until a job is finished; false: timeout, or no job is in flight. */
bool disk_wait(struct disk *d, int timeout_ms);

#endif
