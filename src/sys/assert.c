/* SPDX-License-Identifier: Apache-2.0 */
#include "base/assert.h"

#include <stdio.h>
#include <stdlib.h>

_Noreturn void tqi_assert_failed(const char *expr, const char *file, int line,
                                 const char *invariant)
{
    fprintf(stderr, "tq: %s:%d: assertion failed: %s%s%s%s\n", file, line, expr,
            invariant != NULL ? " (" : "", invariant != NULL ? invariant : "",
            invariant != NULL ? ")" : "");
    abort();
}
