/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The mailbox of a loop: how other threads hand it work. Letters are memory of their senders, so
 * posting never fails for want of room; what bounds them is the sender's own count. A mailbox is
 * counted and may outlive its loop: once closed it takes nothing, and the sender keeps its letter.
 */
#ifndef TQI_SYS_MAIL_H
#define TQI_SYS_MAIL_H

#include <stdatomic.h>
#include <stdbool.h>

#include "base/err.h"
#include "sys/ring.h"

typedef struct tqi_letter tqi_letter_t;
struct tqi_letter {
    tqi_letter_t *next; /* the mailbox's */
    /* Runs in the loop's thread; the letter is the function's to free. is_closed: the loop has
     * ended, nothing of it may be touched any more: only clean up. */
    void (*open)(tqi_letter_t *letter, bool is_closed);
};

typedef struct tqi_mailbox {
    tqi_wake_t wake;
    atomic_uint refs;
    _Atomic(tqi_letter_t *) head; /* newest first; a mark of its own once closed */
} tqi_mailbox_t;

/* One reference. E_NO_MEMORY, E_SYSTEM. */
tq_status_t tqi_mailbox_new(tqi_mailbox_t **out, tqi_err_t *err);
void tqi_mailbox_ref(tqi_mailbox_t *box);
void tqi_mailbox_unref(tqi_mailbox_t *box); /* NULL is fine */

/* Any thread, never blocks. Letters of one sender are opened in their order. False when closed; the
 * letter is then still the caller's. */
bool tqi_mailbox_post(tqi_mailbox_t *box, tqi_letter_t *letter);

/* Owner only. Opens what is there; true if there was anything. */
bool tqi_mailbox_open(tqi_mailbox_t *box);
bool tqi_mailbox_is_empty(tqi_mailbox_t *box);
/* Owner only. Takes no more, and opens what is left with is_closed. */
void tqi_mailbox_close(tqi_mailbox_t *box);

#endif
