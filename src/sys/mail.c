/* SPDX-License-Identifier: Apache-2.0 */
#include "sys/mail.h"

#include <stdlib.h>

#include "base/assert.h"

/* Stands in for the list once the mailbox is closed. */
static tqi_letter_t closed_mark;

tq_status_t tqi_mailbox_new(tqi_mailbox_t **out, tqi_err_t *err)
{
    tqi_mailbox_t *box = calloc(1, sizeof *box);
    if (!box)
        return tqi_fail(err, TQ_E_NO_MEMORY, "no memory for a mailbox");
    tq_status_t rc = tqi_wake_init(&box->wake, err);
    if (rc != TQ_OK) {
        free(box);
        return rc;
    }
    atomic_init(&box->refs, 1);
    atomic_init(&box->head, NULL);
    *out = box;
    return TQ_OK;
}

void tqi_mailbox_ref(tqi_mailbox_t *box)
{
    atomic_fetch_add_explicit(&box->refs, 1, memory_order_relaxed);
}

void tqi_mailbox_unref(tqi_mailbox_t *box)
{
    if (!box || atomic_fetch_sub_explicit(&box->refs, 1, memory_order_acq_rel) != 1)
        return;
    tqi_letter_t *head = atomic_load(&box->head);
    tqi_assert(head == NULL || head == &closed_mark);
    tqi_wake_fini(&box->wake);
    free(box);
}

bool tqi_mailbox_post(tqi_mailbox_t *box, tqi_letter_t *letter)
{
    tqi_letter_t *head = atomic_load_explicit(&box->head, memory_order_relaxed);
    do {
        if (head == &closed_mark)
            return false;
        letter->next = head;
    } while (!atomic_compare_exchange_weak_explicit(&box->head, &head, letter, memory_order_release,
                                                    memory_order_relaxed));
    tqi_wake_signal(&box->wake);
    return true;
}

/* Opens a list that has the newest first, oldest first. */
static bool open_all(tqi_letter_t *head, bool is_closed)
{
    tqi_letter_t *in_order = NULL;
    while (head) {
        tqi_letter_t *next = head->next;
        head->next = in_order;
        in_order = head;
        head = next;
    }
    bool any = in_order != NULL;
    while (in_order) {
        tqi_letter_t *letter = in_order;
        in_order = letter->next;
        letter->open(letter, is_closed);
    }
    return any;
}

bool tqi_mailbox_open(tqi_mailbox_t *box)
{
    if (tqi_mailbox_is_empty(box))
        return false;
    return open_all(atomic_exchange_explicit(&box->head, NULL, memory_order_acquire), false);
}

bool tqi_mailbox_is_empty(tqi_mailbox_t *box)
{
    tqi_letter_t *head = atomic_load_explicit(&box->head, memory_order_acquire);
    return head == NULL || head == &closed_mark;
}

void tqi_mailbox_close(tqi_mailbox_t *box)
{
    tqi_letter_t *head = atomic_exchange_explicit(&box->head, &closed_mark, memory_order_acq_rel);
    if (head != &closed_mark)
        open_all(head, true);
}
