/* SPDX-License-Identifier: Apache-2.0 */
#include "sys/memfd.h"

#include "base/assert.h"
#include "sys/limit.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE /* Linux 5.14; older C libraries don't name it */
#define MADV_POPULATE_WRITE 23
#endif

static tq_status_t memfd_fail(tqi_err_t *err, const char *what, size_t bytes, int errnum)
{
    return tqi_fail_errno(err, errnum, "cannot %s %zu bytes of shared memory", what, bytes);
}

tq_status_t tqi_memfd_open(tqi_memfd_t *memfd, const char *name, size_t bytes, tqi_err_t *err)
{
    tq_status_t status;
    void *base;

    memfd->fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (memfd->fd < 0)
        return memfd_fail(err, "create", bytes, errno);
    if (bytes > INT64_MAX || ftruncate(memfd->fd, (off_t)bytes) != 0) {
        status = memfd_fail(err, "size", bytes, bytes > INT64_MAX ? ENOMEM : errno);
        goto close_fd;
    }
    if (fcntl(memfd->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
        status = memfd_fail(err, "seal", bytes, errno);
        goto close_fd;
    }
    base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memfd->fd, 0);
    if (base == MAP_FAILED) {
        status = memfd_fail(err, "map", bytes, errno);
        goto close_fd;
    }
    if (madvise(base, bytes, MADV_DONTFORK) != 0) {
        status = memfd_fail(err, "keep from children", bytes, errno);
        goto unmap;
    }
    memfd->base = base;
    memfd->bytes = bytes;
    return TQ_OK;

unmap:
    munmap(base, bytes);
close_fd:
    close(memfd->fd);
    *memfd = (tqi_memfd_t){.fd = -1};
    return status;
}

void tqi_memfd_close(tqi_memfd_t *memfd)
{
    if (memfd->fd < 0)
        return;
    munmap(memfd->base, memfd->bytes);
    close(memfd->fd);
    *memfd = (tqi_memfd_t){.fd = -1};
}

static void range_check(const tqi_memfd_t *memfd, size_t offset, size_t len)
{
    tqi_assert(offset <= memfd->bytes && len <= memfd->bytes - offset);
    tqi_assert(offset % 4096 == 0 && len % 4096 == 0);
}

tq_status_t tqi_memfd_punch(tqi_memfd_t *memfd, size_t offset, size_t len, tqi_err_t *err)
{
    range_check(memfd, offset, len);
    if (len == 0)
        return TQ_OK;
    if (fallocate(memfd->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset,
                  (off_t)len) != 0)
        return memfd_fail(err, "give back", len, errno);
    return TQ_OK;
}

tq_status_t tqi_memfd_pretouch(tqi_memfd_t *memfd, size_t offset, size_t len, tqi_err_t *err)
{
    range_check(memfd, offset, len);
    if (len == 0 || madvise(memfd->base + offset, len, MADV_POPULATE_WRITE) == 0)
        return TQ_OK;
    if (errno != EINVAL)
        return memfd_fail(err, "populate", len, errno == EFAULT ? ENOMEM : errno);
    /* An older kernel: allocate first, because touching what can't be had is a SIGBUS. */
    if (fallocate(memfd->fd, FALLOC_FL_KEEP_SIZE, (off_t)offset, (off_t)len) != 0)
        return memfd_fail(err, "populate", len, errno);
    for (size_t at = 0; at < len; at += 4096)
        /* Atomic, because another thread may be writing that byte. */
        atomic_fetch_or_explicit((_Atomic uint8_t *)(memfd->base + offset + at), 0,
                                 memory_order_relaxed);
    return TQ_OK;
}
