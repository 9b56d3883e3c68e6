/* SPDX-License-Identifier: Apache-2.0 */
#include "base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define CUT_MARK "..."

/* vsnprintf into text, cut with CUT_MARK at a UTF-8 character's edge when it does not fit. */
static void text_format(char text[TQI_ERR_TEXT_MAX], const char *fmt, va_list args)
{
    int len = vsnprintf(text, TQI_ERR_TEXT_MAX, fmt, args);

    if (len < 0) { /* only an encoding error of %ls, which nobody uses, gets here */
        text[0] = '\0';
        return;
    }
    if ((size_t)len < TQI_ERR_TEXT_MAX)
        return;
    size_t end = TQI_ERR_TEXT_MAX - sizeof CUT_MARK;
    while (end > 0 && ((unsigned char)text[end] & 0xc0) == 0x80)
        end--;
    memcpy(text + end, CUT_MARK, sizeof CUT_MARK);
}

tq_status_t tqi_fail(tqi_err_t *err, tq_status_t status, const char *fmt, ...)
{
    if (err != NULL) {
        /* Through a copy, because an argument may be err->text itself. */
        char text[TQI_ERR_TEXT_MAX];
        va_list args;

        va_start(args, fmt);
        text_format(text, fmt, args);
        va_end(args);
        memcpy(err->text, text, sizeof text);
        err->status = status;
    }
    return status;
}

static void text_join(char text[TQI_ERR_TEXT_MAX], const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

static void text_join(char text[TQI_ERR_TEXT_MAX], const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    text_format(text, fmt, args);
    va_end(args);
}

void tqi_err_prefix(tqi_err_t *err, const char *fmt, ...)
{
    char prefix[TQI_ERR_TEXT_MAX];
    char whole[TQI_ERR_TEXT_MAX];
    va_list args;

    if (err == NULL)
        return;
    va_start(args, fmt);
    text_format(prefix, fmt, args);
    va_end(args);
    text_join(whole, "%s: %s", prefix, err->text);
    memcpy(err->text, whole, sizeof whole);
}
