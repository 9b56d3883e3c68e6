/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Status codes: one table, from which the enum, the names, the texts, the Python exceptions and
 * docs/errors.md are made.
 *
 * A code says what kind of thing went wrong; the message that travels beside it says which
 * partition, key, field or unit, the figures, and which option to change. The class says what a
 * caller may do about it:
 *
 *   USAGE    the caller's mistake; the same call fails again
 *   RETRY    nothing was changed; the same call may succeed later
 *   PEER     another process or the way to it failed; nothing more is known to be wrong here
 *   LOCAL    this process or machine is out of something
 *   UNKNOWN  the outcome of a write is not known; tq never replays it by itself
 *   FATAL    this client must be closed and opened again
 *   BUG      tq broke its own rules; please report it with the message
 */
#ifndef TQ_STATUS_H
#define TQ_STATUS_H

#define TQ_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

typedef enum tq_status_class {
    TQ_CLASS_OK = 0,
    TQ_CLASS_USAGE = 1,
    TQ_CLASS_RETRY = 2,
    TQ_CLASS_PEER = 3,
    TQ_CLASS_LOCAL = 4,
    TQ_CLASS_UNKNOWN = 5,
    TQ_CLASS_FATAL = 6,
    TQ_CLASS_BUG = 7,
} tq_status_class_t;

/* X(name, number, class, text). Numbers travel on the wire: they are never changed or reused. */
#define TQ_STATUS_TABLE(X)                                                                         \
    X(OK, 0, OK, "success")                                                                        \
    X(E_INVALID, 100, USAGE, "invalid argument")                                                   \
    X(E_NO_PARTITION, 101, USAGE, "no such partition")                                             \
    X(E_NO_FIELD, 102, USAGE, "no such field")                                                     \
    X(E_NO_KEY, 103, USAGE, "no such key")                                                         \
    X(E_NOT_FOUND, 104, USAGE, "no such row or value")                                             \
    X(E_ROW_GONE, 105, USAGE, "the row has been cleared")                                          \
    X(E_DUPLICATE, 106, USAGE, "given twice")                                                      \
    X(E_TOO_LARGE, 107, USAGE, "over a limit")                                                     \
    X(E_UNSUPPORTED, 108, USAGE, "not supported here")                                             \
    X(E_VERSION, 109, USAGE, "no common protocol version")                                         \
    X(E_DENIED, 110, USAGE, "not allowed")                                                         \
    X(E_CLOSED, 111, USAGE, "the handle is closed")                                                \
    X(E_FORKED, 112, USAGE, "the handle belongs to the parent process")                            \
    X(E_CONFIG, 113, USAGE, "bad configuration")                                                   \
    X(E_NO_SAMPLER, 114, USAGE, "no such sampler")                                                 \
    X(E_SAMPLER, 115, USAGE, "the sampler failed")                                                 \
    X(E_NOT_PRODUCED, 116, USAGE, "the field is not produced for the row")                         \
    X(E_BUSY, 200, RETRY, "too much outstanding")                                                  \
    X(E_FULL, 201, RETRY, "no space")                                                              \
    X(E_TIMEOUT, 202, RETRY, "deadline passed")                                                    \
    X(E_NOT_READY, 203, RETRY, "not enough ready rows before the deadline")                        \
    X(E_CANCELLED, 204, RETRY, "cancelled")                                                        \
    X(E_CLOSING, 205, RETRY, "the server is shutting down")                                        \
    X(E_UNREACHABLE, 300, PEER, "no connection to the peer")                                       \
    X(E_PEER_LOST, 301, PEER, "the peer went away")                                                \
    X(E_SESSION_EXPIRED, 302, PEER, "the session has ended")                                       \
    X(E_UNIT_LOST, 303, PEER, "the storage unit that holds the row is lost")                       \
    X(E_STALE_STORE, 304, PEER, "the store was replaced by a new one")                             \
    X(E_MALFORMED, 305, PEER, "malformed message")                                                 \
    X(E_NO_MEMORY, 400, LOCAL, "out of memory")                                                    \
    X(E_SYSTEM, 401, LOCAL, "system call failed")                                                  \
    X(E_ADDRESS, 402, LOCAL, "cannot listen on the address")                                       \
    X(E_OUTCOME_UNKNOWN, 500, UNKNOWN, "the outcome of the write is not known")                    \
    X(E_STORE_GONE, 600, FATAL, "the store that this client was opened for is gone")               \
    X(E_RUNTIME, 601, FATAL, "this runtime can no longer be trusted")                              \
    X(E_BUG, 700, BUG, "internal error")

typedef enum tq_status {
#define TQ_STATUS_ENUM_(name, number, cls, text) TQ_##name = number,
    TQ_STATUS_TABLE(TQ_STATUS_ENUM_)
#undef TQ_STATUS_ENUM_
} tq_status_t;

#define TQ_ERROR_TEXT_MAX 512

/* An error with its sentence: what failed, which partition, key, field or unit, the figures, and
 * what to change. Plain memory of the caller; the text is always terminated. */
typedef struct tq_error {
    tq_status_t status;
    char text[TQ_ERROR_TEXT_MAX];
} tq_error_t;

/* The code's own name ("E_FULL"), or "E_?" for a number that is not in the table. Static memory,
 * any thread. */
TQ_API const char *tq_status_name(tq_status_t status);

/* The table's text for the code ("no space"). Static memory, any thread. */
TQ_API const char *tq_status_text(tq_status_t status);

/* The class of the code; TQ_CLASS_BUG for a number that is not in the table. Any thread. */
TQ_API tq_status_class_t tq_status_class(tq_status_t status);

#ifdef __cplusplus
}
#endif
#endif
