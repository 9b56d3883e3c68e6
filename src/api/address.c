/* SPDX-License-Identifier: Apache-2.0 */
#include "api/address.h"

#include <stdlib.h>
#include <string.h>

tq_status_t tqi_address_parse(const char *given, char **address, uint64_t *incarnation,
                              tqi_err_t *err)
{
    static const char hex[] = "0123456789abcdefABCDEF";

    *address = NULL;
    *incarnation = 0;
    if (!given)
        given = getenv("TQ_ADDRESS");
    if (!given || given[0] == '\0' || given[0] == '#')
        return tqi_fail(err, TQ_E_CONFIG,
                        "no address of a store was given: set address, or TQ_ADDRESS");
    size_t len = strcspn(given, "#");
    if (given[len] == '#') {
        const char *digits = given + len + 1;

        if (strspn(digits, hex) == 16 && digits[16] == '\0')
            *incarnation = strtoull(digits, NULL, 16);
        if (*incarnation == 0)
            return tqi_fail(err, TQ_E_CONFIG,
                            "'%.300s': what follows # must be the store's incarnation, 16 hex "
                            "digits",
                            given);
    }
    *address = strndup(given, len);
    return *address ? TQ_OK : tqi_fail(err, TQ_E_NO_MEMORY, "no memory for an address");
}
