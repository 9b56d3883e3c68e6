/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Assertions about our own invariants, on in every build: a store that has lost one of them must
 * stop before it hands out wrong rows. Never about what a peer, a user or the kernel controls.
 */
#ifndef TQI_BASE_ASSERT_H
#define TQI_BASE_ASSERT_H

/* Says on stderr what failed and where, and aborts. invariant: the numbered one of
 * docs/architecture.md ("INV-7"), or NULL. Defined in sys/assert.c, so that base stays pure;
 * whatever links base links sys. Any thread. */
_Noreturn void tqi_assert_failed(const char *expr, const char *file, int line,
                                 const char *invariant);

#define tqi_assert(expr)                                                                           \
    (__builtin_expect(!!(expr), 1) ? (void)0                                                       \
                                   : tqi_assert_failed(#expr, __FILE__, __LINE__, (void *)0))

/* tqi_invariant(row->state != ROW_DEAD, "INV-7") */
#define tqi_invariant(expr, name)                                                                  \
    (__builtin_expect(!!(expr), 1) ? (void)0 : tqi_assert_failed(#expr, __FILE__, __LINE__, name))

#endif
