/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses of stores, as people and TQ_ADDRESS write them. */
#ifndef TQI_API_ADDRESS_H
#define TQI_API_ADDRESS_H

#include <stdint.h>

#include "base/err.h"

/* "address#incarnation" in its two parts; *address is malloc's, *incarnation 0 where none is named.
 * given NULL: the environment's TQ_ADDRESS. E_CONFIG, E_NO_MEMORY; *address is then NULL. */
tq_status_t tqi_address_parse(const char *given, char **address, uint64_t *incarnation,
                              tqi_err_t *err);

#endif
