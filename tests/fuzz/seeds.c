/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes the first corpora, made from the catalogue: for each message small ones that a peer could
 * send, alone and as stories for each role; and the dictionary: names, words and how fields look.
 *
 *   usage: fuzz_seeds FOLDER        makes FOLDER/{envelope,message,controller,unit,client}
 *          fuzz_seeds --dictionary  writes it to the standard output
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/size.h"
#include "grammar.h"
#include "sys/env_malloc.h"

#define EACH 3 /* bodies of each message */

static const char *folder;
static tqi_rng_t rng;

static void write_file(const char *target, const char *name, unsigned number, const uint8_t *data,
                       size_t len)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, target);
    (void)mkdir(path, 0755);
    snprintf(path, sizeof path, "%s/%s/seed-%s-%u", folder, target, name, number);
    FILE *file = fopen(path, "we");
    if (!file || fwrite(data, 1, len, file) != len || fclose(file) != 0) {
        perror(path);
        exit(1);
    }
}

static size_t add(uint8_t *out, size_t len, size_t cap, uint8_t who, uint8_t seq, uint16_t kind)
{
    static uint8_t body[4096];
    fuzz_record_t record = {.choice = who, .kind = kind, .seq = seq, .body = body};
    record.len = fuzz_body_make(fuzz_kind(kind), &rng, body, sizeof body);
    return len + fuzz_record_write(out + len, cap - len, &record);
}

/* Each op of a client, and each answer that there is, to all that it may ask first. */
static void ops(void)
{
    static uint8_t out[65536];
    uint32_t cnt;
    const tqi_msg_info_t *infos = tqi_msg_infos(&cnt);
    for (uint8_t op = 0; op < 12; op++) {
        for (uint8_t n = 0; n < EACH; n++) {
            size_t len = 0;
            fuzz_record_t record = {.choice = 4 << 2, .flags = n, .seq = op};
            char name[16];
            out[len++] = n;
            len += fuzz_record_write(out + len, sizeof out - len, &record);
            for (uint32_t i = 0; i < cnt; i++)
                if ((infos[i].kind & TQI_KIND_REPLY) && strstr(infos[i].direction, "TO_CLIENT"))
                    len = add(out, len, sizeof out, 0, 0, (uint16_t)infos[i].kind);
            snprintf(name, sizeof name, "op-%u", op);
            write_file("client", name, n, out, len);
        }
    }
}

/* A message after those that open the door, and stories of twenty. */
static void stories(const char *target, bool has_head, const uint16_t *door, unsigned door_cnt,
                    uint8_t who, const char *direction, bool is_reply)
{
    static uint8_t out[65536];
    uint32_t cnt;
    const tqi_msg_info_t *infos = tqi_msg_infos(&cnt);
    for (uint32_t i = 0; i < cnt; i++) {
        if (!strstr(infos[i].direction, direction) && !strstr(infos[i].direction, "ANY"))
            continue;
        if (((infos[i].kind & TQI_KIND_REPLY) != 0) != is_reply)
            continue;
        for (unsigned n = 0; n < EACH; n++) {
            size_t len = 0;
            if (has_head)
                out[len++] = (uint8_t)n;
            for (unsigned d = 0; d < door_cnt; d++)
                len = add(out, len, sizeof out, who, 0, door[d]);
            len = add(out, len, sizeof out, who, 1, (uint16_t)infos[i].kind);
            write_file(target, infos[i].name, n, out, len);
        }
    }
    for (unsigned n = 0; n < 2 * EACH; n++) {
        size_t len = 0;
        if (has_head)
            out[len++] = (uint8_t)n;
        for (unsigned d = 0; d < door_cnt; d++)
            len = add(out, len, sizeof out, who, 0, door[d]);
        for (uint8_t i = 1; i <= 20; i++) {
            const tqi_msg_info_t *info = &infos[tqi_rng_below(&rng, cnt)];
            if (strstr(info->direction, direction) &&
                ((info->kind & TQI_KIND_REPLY) != 0) == is_reply)
                len = add(out, len, sizeof out, who, i, (uint16_t)info->kind);
        }
        write_file(target, "story", n, out, len);
    }
}

static void messages(void)
{
    static uint8_t out[4096];
    uint32_t cnt;
    const tqi_msg_info_t *infos = tqi_msg_infos(&cnt);
    for (uint32_t i = 0; i < cnt; i++) {
        tqi_envelope_t env = {.kind = (uint16_t)infos[i].kind, .seq = 1, .session = 1};
        const uint64_t open[] = {1, 3};
        tqi_buf_t frame;
        tqi_store_le16(out, (uint16_t)infos[i].kind);
        size_t len = 2 + fuzz_body_make(&infos[i], &rng, out + 2, sizeof out - 2);
        write_file("message", infos[i].name, 0, out, len);
        env.open_cnt = i % 3;
        tqi_buf_init(&frame, tqi_env_malloc());
        if (tqi_envelope_begin(&frame, &env, open) != TQ_OK ||
            tqi_buf_append(&frame, out + 2, len - 2) != TQ_OK)
            exit(1);
        tqi_envelope_seal(&frame);
        write_file("envelope", infos[i].name, 0, frame.data, frame.len);
        tqi_buf_fini(&frame);
    }
}

/* ---- the dictionary -------------------------------------------------------------------------- */

static void entry(const void *data, size_t len)
{
    putchar('"');
    for (size_t i = 0; i < len; i++)
        printf("\\x%02x", ((const uint8_t *)data)[i]);
    puts("\"");
}

static void text(const char *words)
{
    entry(words, strlen(words));
}

/* How a field begins: its key, and the head of its type. */
static void dictionary(void)
{
    static const char *const words[] = {"p",
                                        "q",
                                        "f",
                                        "g",
                                        "h",
                                        "t",
                                        "u",
                                        "k0",
                                        "k1",
                                        "a",
                                        "n",
                                        "dp_rank",
                                        "seqlen",
                                        "null",
                                        "true",
                                        "i64",
                                        "f32[2]",
                                        "tcp://",
                                        "ipc://",
                                        "inproc://",
                                        "#0123456789abcdef",
                                        "unit:\n  capacity: ",
                                        "role: ",
                                        "TQ_UNIT_CAPACITY=",
                                        "--unit-capacity=",
                                        "64GiB",
                                        "5s"};
    static const uint8_t heads[] = {
        [TQI_TYPE_u64] = 0xcf,   [TQI_TYPE_u32] = 0xce, [TQI_TYPE_bool] = 0xc3,
        [TQI_TYPE_bytes] = 0xc4, [TQI_TYPE_str] = 0xa1, [TQI_TYPE_u64s] = 0xc4,
        [TQI_TYPE_u32s] = 0xc4,  [TQI_TYPE_u8s] = 0xc4, [TQI_TYPE_strs] = 0x92};
    bool is_said[32][tqi_array_len(heads)] = {{false}};
    uint32_t cnt;
    const tqi_msg_info_t *infos = tqi_msg_infos(&cnt);
    puts("# made by fuzz_seeds --dictionary from src/wire/catalogue.def");
    text("TTQ1");
    text("TQP1");
    for (uint32_t i = 0; i < cnt; i++) {
        uint8_t kind[2];
        tqi_store_le16(kind, (uint16_t)infos[i].kind);
        entry(kind, 2);
        for (uint32_t j = 0; j < infos[i].fields_cnt; j++) {
            const tqi_field_info_t *f = &infos[i].fields[j];
            uint8_t head[2] = {f->key, heads[f->type]};
            if (f->key < 32 && !is_said[f->key][f->type])
                entry(head, 2);
            if (f->key < 32)
                is_said[f->key][f->type] = true;
        }
    }
    for (size_t i = 0; i < tqi_array_len(words); i++)
        text(words[i]);
}

int main(int argc, char **argv)
{
    static const uint16_t controller_door[] = {TQI_KIND_Hello, TQI_KIND_Register, TQI_KIND_Insert};
    static const uint16_t unit_door[] = {TQI_KIND_Hello, TQI_KIND_PreparePut};
    if (argc != 2)
        return 2;
    if (strcmp(argv[1], "--dictionary") == 0) {
        dictionary();
        return 0;
    }
    folder = argv[1];
    (void)mkdir(folder, 0755);
    tqi_rng_init(&rng, 1);
    messages();
    stories("controller", true, controller_door, 3, 1, "TO_CONTROLLER", false);
    stories("unit", false, unit_door, 2, 1, "TO_UNIT", false);
    stories("client", true, NULL, 0, 0, "TO_CLIENT", true);
    ops();
    return 0;
}
