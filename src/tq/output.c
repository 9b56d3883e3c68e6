/* SPDX-License-Identifier: Apache-2.0 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "tq/cli.h"

/* Out of memory ends the program: there is nothing to save. */
static void *must(void *data)
{
    if (!data) {
        fputs("tq: out of memory\n", stderr);
        exit(CLI_OTHER);
    }
    return data;
}

/* ---- strings --------------------------------------------------------------------------------- */

tq_strs_t cli_strs(const char *const *words, unsigned cnt)
{
    size_t bytes_len = 0;
    for (unsigned i = 0; i < cnt; i++)
        bytes_len += strlen(words[i]);
    uint32_t *offsets = must(calloc((size_t)cnt + 1, sizeof *offsets));
    char *bytes = must(malloc(bytes_len + 1));
    for (unsigned i = 0; i < cnt; i++) {
        size_t len = strlen(words[i]);
        memcpy(bytes + offsets[i], words[i], len);
        offsets[i + 1] = offsets[i] + (uint32_t)len;
    }
    return (tq_strs_t){cnt, offsets, bytes};
}

void cli_strs_free(tq_strs_t *strs)
{
    free((void *)strs->offsets);
    free((void *)strs->bytes);
}

const char *cli_strs_at(const tq_strs_t *strs, uint32_t i, size_t *len)
{
    if (i >= strs->cnt) {
        *len = 0;
        return "";
    }
    *len = strs->offsets[i + 1] - strs->offsets[i];
    return strs->bytes + strs->offsets[i];
}

/* ---- tables ---------------------------------------------------------------------------------- */

struct cli_table {
    char **cells; /* row by row, columns_cnt each; the first row has the heads */
    size_t cells_cnt;
    size_t cells_cap;
    unsigned columns_cnt;
};

static void add_cell(cli_table_t *table, char *text)
{
    if (table->cells_cnt == table->cells_cap) {
        table->cells_cap = table->cells_cap ? 2 * table->cells_cap : 64;
        table->cells = must(realloc(table->cells, table->cells_cap * sizeof *table->cells));
    }
    for (char *at = text; *at; at++)
        if ((unsigned char)*at < 0x20 || *at == 0x7f)
            *at = '?'; /* a key can't draw on the terminal */
    table->cells[table->cells_cnt++] = text;
}

cli_table_t *cli_table_new(const char *heads)
{
    cli_table_t *table = must(calloc(1, sizeof *table));
    for (const char *at = heads;; at++) {
        size_t len = strcspn(at, "\t");
        add_cell(table, must(strndup(at, len)));
        table->columns_cnt++;
        at += len;
        if (!*at)
            return table;
    }
}

void cli_table_cell(cli_table_t *table, const char *fmt, ...)
{
    char *text = NULL;
    va_list args;
    va_start(args, fmt);
    if (vasprintf(&text, fmt, args) < 0)
        text = NULL;
    va_end(args);
    add_cell(table, must(text));
}

void cli_table_cell_bytes(cli_table_t *table, const void *data, size_t len)
{
    char *text = must(malloc(len + 1));
    for (size_t i = 0; i < len; i++)
        text[i] = ((const char *)data)[i] ? ((const char *)data)[i] : '?';
    text[len] = 0;
    add_cell(table, text);
}

void cli_table_end_row(cli_table_t *table)
{
    while (table->cells_cnt % table->columns_cnt != 0)
        add_cell(table, must(strdup("")));
}

/* Columns that a text takes: a byte that continues a UTF-8 character takes none. */
static size_t width_of(const char *text)
{
    size_t width = 0;
    for (; *text; text++)
        width += ((unsigned char)*text & 0xc0) != 0x80;
    return width;
}

/* Bytes of the first `width` characters. */
static size_t bytes_of(const char *text, size_t width)
{
    const char *at = text;
    for (; *at && (width > 0 || ((unsigned char)*at & 0xc0) == 0x80); at++)
        width -= ((unsigned char)*at & 0xc0) != 0x80;
    return (size_t)(at - text);
}

void cli_table_print(cli_table_t *table)
{
    struct winsize window;
    size_t *widths = must(calloc(table->columns_cnt, sizeof *widths));
    size_t terminal = SIZE_MAX;
    if (isatty(STDOUT_FILENO) && ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col)
        terminal = window.ws_col;
    for (size_t i = 0; i < table->cells_cnt; i++) {
        size_t width = width_of(table->cells[i]), *widest = &widths[i % table->columns_cnt];
        *widest = width > *widest ? width : *widest;
    }
    for (size_t i = 0; i < table->cells_cnt; i += table->columns_cnt) {
        size_t left = terminal;
        for (unsigned c = 0; c < table->columns_cnt && left > 0; c++) {
            const char *text = table->cells[i + c];
            bool is_last = c + 1 == table->columns_cnt;
            size_t width = width_of(text), shown = width < left ? width : left;
            fwrite(text, 1, bytes_of(text, shown), stdout);
            left -= shown;
            for (size_t pad = width; !is_last && pad < widths[c] + 2 && left > 0; pad++, left--)
                putchar(' ');
        }
        putchar('\n');
    }
    for (size_t i = 0; i < table->cells_cnt; i++)
        free(table->cells[i]);
    free(table->cells);
    free(table);
    free(widths);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

void cli_json_string(const void *data, size_t len)
{
    char *json = must(tq_json_string(data, len));
    fputs(json, stdout);
    tq_free(json);
}

void cli_json_value(const void *data, size_t len)
{
    char *json = NULL;
    tq_error_t err;
    if (tq_value_to_json(data, len, &json, &err) != TQ_OK)
        fputs("null", stdout);
    else
        fputs(json, stdout);
    tq_free(json);
}
