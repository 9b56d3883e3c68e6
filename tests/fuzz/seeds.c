/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes the first corpus: for each message of the catalogue a small valid one, as a frame, as a
 * body, and as a record for a role (peer.h), after a HELLO or a REGISTER where that matters.
 *
 *   usage: seeds FOLDER    makes FOLDER/{wire,controller,unit}
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "sys/env_malloc.h"
#include "wire/coldesc.h"
#include "wire/msg.h"

static const char *folder;

static void write_file(const char *target, const char *name, const tqi_buf_t *buf)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, target);
    (void)mkdir(path, 0755);
    snprintf(path, sizeof path, "%s/%s/%s", folder, target, name);
    FILE *file = fopen(path, "we");
    if (!file || fwrite(buf->data, 1, buf->len, file) != buf->len || fclose(file) != 0)
        exit(1);
}

static void one_desc(void *ctx, uint32_t row, tq_desc_t *desc)
{
    (void)row;
    *desc = *(const tq_desc_t *)ctx;
}

/* Fills every field with something that fits its name: one row 0, one field "f", one value of four
 * bytes. */
static void fill(const tqi_msg_info_t *info, uint8_t *msg, tqi_strs_builder_t *names,
                 tqi_strs_builder_t *columns, tqi_strs_builder_t *schemas)
{
    static const uint64_t zero[1] = {0}, one[1] = {1};
    static const uint32_t unit[1] = {1};
    for (uint32_t i = 0; i < info->fields_cnt; i++) {
        const tqi_field_info_t *f = &info->fields[i];
        void *at = msg + f->offset;
        switch (f->type) {
        case TQI_TYPE_u64:
            *(uint64_t *)at = 1;
            break;
        case TQI_TYPE_u32:
            *(uint32_t *)at = 1;
            break;
        case TQI_TYPE_bool:
            *(bool *)at = strcmp(f->name, "is_abort") != 0 && strcmp(f->name, "is_all") != 0 &&
                          strcmp(f->name, "is_partitions") != 0 &&
                          strcmp(f->name, "is_create") != 0;
            break;
        case TQI_TYPE_bytes:
            if (strcmp(f->name, "inline_bytes") == 0)
                *(tqi_bytes_t *)at = (tqi_bytes_t){"abcd", 4};
            else if (strcmp(f->name, "sampling") == 0)
                *(tqi_bytes_t *)at = (tqi_bytes_t){"\x80", 1};
            break;
        case TQI_TYPE_str:
            *(tqi_str_t *)at = tqi_str("p");
            break;
        case TQI_TYPE_u64s: {
            bool is_hi = strcmp(f->name, "hi") == 0 || strstr(f->name, "_hi");
            *(tqi_u64s_t *)at = tqi_u64s(is_hi ? one : zero, 1);
            break;
        }
        case TQI_TYPE_u32s:
            *(tqi_u32s_t *)at = tqi_u32s(unit, 1);
            break;
        case TQI_TYPE_u8s:
            *(tqi_u8s_t *)at = (tqi_u8s_t){(const uint8_t *)"\x01", 1};
            break;
        case TQI_TYPE_strs:
            *(tqi_strs_t *)at = tqi_strs_builder_view(strcmp(f->name, "columns") == 0   ? columns
                                                      : strcmp(f->name, "schemas") == 0 ? schemas
                                                                                        : names);
            if (strcmp(f->name, "tags") == 0)
                *(tqi_strs_t *)at = (tqi_strs_t){0};
            break;
        }
    }
}

/* Appends a record of peer.h: choice, length, then kind, flags, seq, ack and the body. */
static void add_record(tqi_buf_t *to, uint8_t choice, uint8_t index, uint8_t flags, uint8_t seq,
                       const uint8_t *body, size_t body_len)
{
    uint16_t len = (uint16_t)(body_len + 4);
    uint8_t head[7] = {choice, (uint8_t)len, (uint8_t)(len >> 8), index, flags, seq, 0};
    if (tqi_buf_append(to, head, sizeof head) != TQ_OK ||
        tqi_buf_append(to, body, body_len) != TQ_OK)
        exit(1);
}

int main(int argc, char **argv)
{
    const tqi_env_t *env = tqi_env_malloc();
    tqi_strs_builder_t names, columns, schemas;
    tqi_buf_t blob, frames[64], out, story;
    uint32_t infos_cnt;
    const tqi_msg_info_t *infos = tqi_msg_infos(&infos_cnt);
    tq_desc_t desc = {.encoding = TQ_ENC_TEXT, .len = 4};
    tqi_coldesc_t col;
    tq_schema_t schema;
    uint8_t hello = 0, reg = 0, reg_r = 0;
    if (argc != 2 || infos_cnt > 64)
        return 2;
    folder = argv[1];
    (void)mkdir(folder, 0755);
    tqi_strs_builder_init(&names, env);
    tqi_strs_builder_init(&columns, env);
    tqi_strs_builder_init(&schemas, env);
    tqi_buf_init(&blob, env);
    if (tqi_coldesc_encode(&blob, 1, one_desc, &desc, NULL) != TQ_OK ||
        tqi_coldesc_decode((tqi_bytes_t){blob.data, (uint32_t)blob.len}, 1, &col, NULL) != TQ_OK)
        return 1;
    tqi_strs_builder_add(&columns, blob.data, blob.len);
    tqi_schema_of(&col, &schema);
    tqi_buf_clear(&blob);
    tqi_schema_encode(&blob, &schema);
    tqi_strs_builder_add(&schemas, blob.data, blob.len);
    tqi_strs_builder_add(&names, "f", 1);

    for (uint32_t i = 0; i < infos_cnt; i++) {
        _Alignas(16) uint8_t msg[1024] = {0};
        tqi_envelope_t e = {.kind = (uint16_t)infos[i].kind, .seq = 1, .session = 1};
        if (infos[i].kind == TQI_KIND_Hello)
            hello = (uint8_t)i;
        if (infos[i].kind == TQI_KIND_Register)
            reg = (uint8_t)i;
        if (infos[i].kind == TQI_KIND_Register_R)
            reg_r = (uint8_t)i;
        if (infos[i].kind == TQI_KIND_Error) {
            e.kind = TQI_KIND_Publish_R;
            e.status = TQ_E_FULL;
        }
        fill(&infos[i], msg, &names, &columns, &schemas);
        tqi_buf_init(&frames[i], env);
        if (tqi_msg_encode(&frames[i], &e, NULL, msg, NULL) != TQ_OK)
            return 1;
        write_file("wire", infos[i].name, &frames[i]);
    }
    /* Each message after the ones that open the door; then a story with all of them. */
    tqi_buf_init(&out, env);
    tqi_buf_init(&story, env);
    const size_t skip = TQI_ENVELOPE_BYTES;
    for (int role = 0; role < 2; role++) {
        const char *target = role == 0 ? "controller" : "unit";
        tqi_buf_clear(&story);
        for (uint32_t i = 0; i < infos_cnt; i++) {
            tqi_buf_clear(&out);
            if (role == 0) {
                add_record(&out, 0, hello, 3, 0, frames[hello].data + skip,
                           frames[hello].len - skip);
                add_record(&out, 1, reg, 3, 0, frames[reg].data + skip, frames[reg].len - skip);
            } else {
                add_record(&out, 0, reg_r, 2, 0, frames[reg_r].data + skip,
                           frames[reg_r].len - skip);
                add_record(&out, 1, hello, 0, 0, frames[hello].data + skip,
                           frames[hello].len - skip);
            }
            if (i == 0)
                tqi_buf_append(&story, out.data, out.len);
            add_record(&out, role == 0 ? 0 : 1, (uint8_t)i, 0, 1, frames[i].data + skip,
                       frames[i].len - skip);
            add_record(&story, role == 0 ? 0 : 1, (uint8_t)i, 0, (uint8_t)(i + 1),
                       frames[i].data + skip, frames[i].len - skip);
            write_file(target, infos[i].name, &out);
        }
        write_file(target, "story", &story);
    }
    for (uint32_t i = 0; i < infos_cnt; i++)
        tqi_buf_fini(&frames[i]);
    tqi_buf_fini(&blob);
    tqi_buf_fini(&out);
    tqi_buf_fini(&story);
    tqi_strs_builder_fini(&names);
    tqi_strs_builder_fini(&columns);
    tqi_strs_builder_fini(&schemas);
    return 0;
}
