/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What people type: addresses of stores, and the words of `tq put` (fields, numbers, shapes, tags),
 * separated by zero bytes. The command is the real one; its client is not.
 */
#include "fuzz.h"

#include <string.h>

#include "api/address.h"
#include "tq/cli.h"

/* ---- what tq/put.c needs of the rest of the program ------------------------------------------ */

static bool is_said; /* a sentence for the user */

int cli_usage(const cli_t *cli, const char *fmt, ...)
{
    (void)cli;
    is_said = fmt[0] != 0;
    return CLI_USAGE;
}

int cli_fail(const cli_t *cli, tq_status_t status, const char *text)
{
    (void)cli;
    is_said = text[0] != 0;
    fuzz_require(status != TQ_OK, "a failure with status OK");
    return CLI_OTHER;
}

int cli_connect(cli_t *cli)
{
    (void)cli;
    is_said = true;
    return CLI_UNREACHABLE;
}

int cli_finish(const cli_t *cli, tq_status_t submitted, const tq_error_t *err, tq_op_t **op)
{
    (void)cli, (void)submitted, (void)err, (void)op;
    abort(); /* nothing is submitted without a client */
}

tq_strs_t cli_strs(const char *const *words, unsigned cnt)
{
    (void)words, (void)cnt;
    abort();
}

void cli_strs_free(tq_strs_t *strs)
{
    (void)strs;
    abort();
}

/* ---- the target ------------------------------------------------------------------------------ */

static void address_of(const char *text)
{
    char *address = NULL;
    uint64_t incarnation = 0;
    tqi_err_t err = {0};
    if (tqi_address_parse(text, &address, &incarnation, &err) != TQ_OK) {
        fuzz_require(err.text[0] != 0 && !address, "a refusal without a sentence");
        return;
    }
    const char *mark = strchr(text, '#');
    fuzz_require(strncmp(address, text, strlen(address)) == 0 && !strchr(address, '#') &&
                     (mark != NULL) == (incarnation != 0),
                 "'%s' was read as '%s'", text, address);
    free(address);
}

void tqi_fuzz_one(const uint8_t *data, size_t len)
{
    static cli_t cli;
    char *text = calloc(len + 1, 1);
    memset(&cli, 0, sizeof cli);
    cli.command = "put";
    if (len > 0)
        memcpy(text, data, len);
    address_of(text);
    for (size_t at = 0; at < len; at += strlen(text + at) + 1) {
        const char *word = text + at;
        /* Files are not for a fuzzer to name. */
        if (strstr(word, "=@"))
            continue;
        if (word[0] == '-' && cli.tags_cnt < CLI_LISTS_MAX)
            cli.tags[cli.tags_cnt++] = word + 1;
        else if (cli.words_cnt < CLI_WORDS_MAX)
            cli.words[cli.words_cnt++] = word;
    }
    is_said = false;
    int code = cli_put(&cli);
    fuzz_require(code != CLI_OK && is_said, "the command said nothing and ended with %d", code);
    free(text);
}
