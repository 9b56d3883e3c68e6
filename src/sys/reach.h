/* SPDX-License-Identifier: Apache-2.0 */
/* By which address other machines reach this one, as far as it can know. Sends nothing, but for what
 * looking up a name takes. Any thread. */
#ifndef TQI_SYS_REACH_H
#define TQI_SYS_REACH_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

#define TQI_HOST_TEXT_MAX 64 /* "[IPv6 address]" and a terminator */

/* The address that packets to `host` (a name or an address) would leave from. False where there is
 * no route to it, or none that leaves this machine. */
bool tqi_reach_route(const char *host, bool may_be_ipv6, char out[TQI_HOST_TEXT_MAX]);

/* The address of this machine: the one that its name stands for, else the only one that it has, else
 * 127.0.0.1 where it has none but that. IPv6 addresses come in brackets, and count only where they may
 * be used and there is no other. E_CONFIG where there are several: the text lists them. */
tq_status_t tqi_reach_machine(bool may_be_ipv6, char out[TQI_HOST_TEXT_MAX], tqi_err_t *err);

#endif
