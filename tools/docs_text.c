/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prints one generated part of the documentation, as tools/gen-docs puts it between its markers:
 *   docs_text options | errors | catalogue | counters | transfers
 */
#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <tq/status.h>

#include "conf/conf.h"
#include "core/transfer.h"
#include "role/controller/internal.h"
#include "wire/msg.h"

static void errors(void)
{
    static const char *const classes[] = {
        [TQ_CLASS_OK] = "",         [TQ_CLASS_USAGE] = "USAGE", [TQ_CLASS_RETRY] = "RETRY",
        [TQ_CLASS_PEER] = "PEER",   [TQ_CLASS_LOCAL] = "LOCAL", [TQ_CLASS_UNKNOWN] = "UNKNOWN",
        [TQ_CLASS_FATAL] = "FATAL", [TQ_CLASS_BUG] = "BUG",
    };
    static const tq_status_t all[] = {
#define X(name, number, cls, text) TQ_##name,
        TQ_STATUS_TABLE(X)
#undef X
    };

    puts("| code | number | class | text |\n| --- | --- | --- | --- |");
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        printf("| `%s` | %d | %s | %s |\n", tq_status_name(all[i]), (int)all[i],
               classes[tq_status_class(all[i])], tq_status_text(all[i]));
}

/* "CLIENT_TO_ANY" -> "client to any". */
static void print_lower(const char *text)
{
    for (; *text; text++)
        putchar(*text == '_' ? ' ' : tolower((unsigned char)*text));
}

static void catalogue(void)
{
    static const char *const types[] = {
        [TQI_TYPE_u64] = "u64",     [TQI_TYPE_u32] = "u32", [TQI_TYPE_bool] = "bool",
        [TQI_TYPE_bytes] = "bytes", [TQI_TYPE_str] = "str", [TQI_TYPE_u64s] = "u64s",
        [TQI_TYPE_u32s] = "u32s",   [TQI_TYPE_u8s] = "u8s", [TQI_TYPE_strs] = "strs",
    };
    uint32_t cnt;
    const tqi_msg_info_t *infos = tqi_msg_infos(&cnt);

    for (uint32_t i = 0; i < cnt; i++) {
        const tqi_msg_info_t *msg = &infos[i];
        printf("%s**%s** (0x%04x, ", i ? "\n" : "", msg->name, (unsigned)msg->kind);
        print_lower(msg->direction);
        printf("): %s.", msg->doc);
        if (strcmp(msg->idempotent, "-") != 0)
            printf(" Sent again: %s.", msg->idempotent);
        puts("");
        if (msg->fields_cnt > 0)
            puts("\n| key | field | type | max | |\n| --- | --- | --- | --- | --- |");
        for (uint32_t f = 0; f < msg->fields_cnt; f++) {
            const tqi_field_info_t *field = &msg->fields[f];
            printf("| %u | `%s` | %s | ", field->key, field->name, types[field->type]);
            if (field->max > 0)
                printf("%" PRIu64, field->max);
            printf(" | %s |\n", field->doc);
        }
    }
}

static void counters(void)
{
    puts("| member | counts |\n| --- | --- |");
#define X(name, doc) puts("| `" #name "` | " doc " |");
    COUNTER_TABLE(X)
#undef X
}

static void transfers(void)
{
    puts("| state | a transfer that |\n| --- | --- |");
#define X(P, name, doc) puts("| `" #name "` | " doc " |");
    TQI_TRANSFER_STATES(X, TQI_TRANSFER)
#undef X
}

int main(int argc, char **argv)
{
    const char *part = argc == 2 ? argv[1] : "";

    if (strcmp(part, "options") == 0)
        tqi_conf_markdown(stdout);
    else if (strcmp(part, "errors") == 0)
        errors();
    else if (strcmp(part, "catalogue") == 0)
        catalogue();
    else if (strcmp(part, "counters") == 0)
        counters();
    else if (strcmp(part, "transfers") == 0)
        transfers();
    else
        return 2;
    return fflush(stdout) == 0 ? 0 : 1;
}
