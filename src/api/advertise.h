/* SPDX-License-Identifier: Apache-2.0 */
/* What others are told to dial, of an address that is listened on. */
#ifndef TQI_API_ADVERTISE_H
#define TQI_API_ADVERTISE_H

#include "base/err.h"
#include "net/adapter.h"

/* Listens on every address of the machine: nothing that anybody could dial. */
bool tqi_is_wildcard(const char *address);

/* The host of a tcp address, brackets included; false for any other address. */
bool tqi_address_host(const char *address, char host[TQI_ADDRESS_MAX]);

/* What clients dial to reach `listens`, an address with its real port.
 *
 * given (NULL or "": nothing): HOST or HOST:PORT, with or without tcp:// in front, for a tcp address;
 * the port is that of `listens` where none is given. Without it a wildcard is reached by the address of
 * the route to `towards` (a tcp address, or NULL), else by the machine's (sys/reach.h), and any other
 * address by itself. E_CONFIG names the option `option`. */
tq_status_t tqi_advertise(const char *listens, const char *given, const char *towards,
                          const char *option, char out[TQI_ADDRESS_MAX], tqi_err_t *err);

#endif
