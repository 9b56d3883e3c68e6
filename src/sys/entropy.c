/* SPDX-License-Identifier: Apache-2.0 */
#include "sys/entropy.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/types.h>

void tqi_entropy(void *bytes, size_t len)
{
    uint8_t *at = bytes;

    while (len > 0) {
        ssize_t got = getrandom(at, len, 0);

        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0) {
            /* Only a kernel or a filter without the call gets here; a predictable token would be a
             * hole, and there is nothing else to take. */
            fprintf(stderr, "tq: getrandom failed: %s\n", strerror(errno));
            abort();
        }
        at += got;
        len -= (size_t)got;
    }
}
