/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An error on its way up: the code, and the sentence written where the cause was seen. A function
 * that can fail for a reason worth telling takes a tqi_err_t *err (may be NULL) and returns the
 * code; callers pass both on and add nothing but context that the callee could not know.
 */
#ifndef TQI_BASE_ERR_H
#define TQI_BASE_ERR_H

#include <tq/status.h>

#define TQI_ERR_TEXT_MAX TQ_ERROR_TEXT_MAX

/* The public type: text is always terminated, and cut with "..." when too long. */
typedef tq_error_t tqi_err_t;

/* Writes code and text into err (which may be NULL) and returns the code:
 *     return tqi_fail(err, TQ_E_FULL, "partition '%s': %zu bytes ...", name, size); */
tq_status_t tqi_fail(tqi_err_t *err, tq_status_t status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Puts "context: " in front of the text that is there. */
void tqi_err_prefix(tqi_err_t *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
