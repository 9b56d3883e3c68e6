/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon's YAML. */
#include "fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "conf/conf.h"

void tqi_fuzz_one(const uint8_t *data, size_t len)
{
    static int fd = -1;
    char path[64];
    tqi_conf_t *conf;
    tqi_err_t err;
    if (fd < 0)
        fd = memfd_create("fuzz", MFD_CLOEXEC);
    if (ftruncate(fd, 0) != 0 || pwrite(fd, data, len, 0) != (ssize_t)len)
        abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (tqi_conf_new(&conf, &err) != TQ_OK)
        abort();
    if (tqi_conf_load_file(conf, path, &err) != TQ_OK && err.text[0] == 0)
        abort();
    tqi_conf_free(conf);
}
