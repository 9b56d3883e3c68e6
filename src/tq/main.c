/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tq/cli.h"

static const struct {
    const char *name;
    cli_command_t run;
    const char *usage;
    const char *doc;
} commands[] = {
    {"put", cli_put, "PARTITION KEY FIELD=VALUE... [--tag NAME=VALUE]...",
     "Puts one row. VALUE is text, @FILE (bytes), or with FIELD:DTYPE[SHAPE] numbers with commas:\n"
     "      tq put train a prompt='2+2' tokens:i64[3]=5,6,7 image=@a.png --tag version=3"},
    {"get", cli_get, "PARTITION KEY... [--field NAME]... [-o FOLDER]",
     "Reads rows by key. With -o each value goes to FOLDER/KEY.FIELD as raw bytes."},
    {"ls", cli_ls, "[PARTITION] [--all] [--fields] [--stuck]",
     "Lists partitions, or the rows of one that have a key (--all: all rows). --fields shows "
     "which\n"
     "      fields each has; --stuck only rows that a waiting fetch lacks fields of."},
    {"stat", cli_stat, "[--metrics]",
     "Figures of the store, its partitions, units and sessions, as JSON; --metrics: as Prometheus "
     "text."},
    {"clear", cli_clear, "PARTITION KEY... | PARTITION --all",
     "Clears rows by key, or a whole partition."},
    {"unit", cli_unit, "forget UNIT",
     "Gives up a lost storage unit, by its number: its values are lost at once, and can be put\n"
     "      again; its process has to be started anew to come back."},
    {"doctor", cli_doctor, "", "Checks what usually is wrong: address, limits, units."},
};
#define COMMANDS_CNT (sizeof commands / sizeof commands[0])

static void print_usage(FILE *out)
{
    fputs("usage: tq COMMAND ... [--address ADDRESS] [--server-key FILE] [--json] "
          "[--timeout SECONDS]\n\n",
          out);
    for (size_t i = 0; i < COMMANDS_CNT; i++)
        fprintf(out, "  %s%s%s\n      %s\n", commands[i].name, commands[i].usage[0] ? " " : "",
                commands[i].usage, commands[i].doc);
    fputs("  version\n\n"
          "ADDRESS (default: the environment's TQ_ADDRESS) is where the store listens:\n"
          "tcp://HOST:PORT or ipc://PATH, optionally #INCARNATION. The server key (default: the "
          "file\n"
          "that TQ_SERVER_KEY_FILE names) is the public CURVE key of a store that wants one.\n"
          "Exit codes: 0 done; 1 the answer is no; 2 bad usage; 3 no store; 4 not now; 5 other.\n",
          out);
}

int cli_usage(const cli_t *cli, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    fprintf(stderr, "tq %s: ", cli->command);
    vfprintf(stderr, fmt, args);
    fputs("; see tq --help\n", stderr);
    va_end(args);
    return CLI_USAGE;
}

int cli_fail(const cli_t *cli, tq_status_t status, const char *text)
{
    fprintf(stderr, "tq %s: %s: %s\n", cli->command, tq_status_name(status), text);
    switch (status) {
    case TQ_E_NO_PARTITION:
    case TQ_E_NO_FIELD:
    case TQ_E_NO_KEY:
    case TQ_E_NOT_FOUND:
    case TQ_E_NOT_PRODUCED:
    case TQ_E_ROW_GONE:
        return CLI_NO;
    case TQ_E_STORE_GONE:
        return CLI_UNREACHABLE;
    default:
        break;
    }
    switch (tq_status_class(status)) {
    case TQ_CLASS_OK:
        return CLI_OK;
    case TQ_CLASS_USAGE:
        return CLI_USAGE;
    case TQ_CLASS_RETRY:
        return CLI_NOT_NOW;
    case TQ_CLASS_PEER:
        return CLI_UNREACHABLE;
    default:
        return CLI_OTHER;
    }
}

/* Reads the first line of a key file. */
static tq_status_t read_key(const char *path, char key[64], tq_error_t *err)
{
    FILE *file = fopen(path, "re");
    err->status = TQ_OK;
    if (!file || !fgets(key, 64, file)) {
        err->status = TQ_E_CONFIG;
        snprintf(err->text, sizeof err->text, "cannot read the server key from %s: %s", path,
                 file ? "it is empty" : strerror(errno));
    } else {
        key[strcspn(key, "\r\n")] = 0;
    }
    if (file)
        fclose(file);
    return err->status;
}

tq_status_t cli_open(cli_t *cli, tq_error_t *err)
{
    const char *path = cli->server_key ? cli->server_key : getenv("TQ_SERVER_KEY_FILE");
    char key[64];
    tq_client_conf_t conf = {
        .address = cli->address, .name = "tq", .call_timeout_ms = cli->timeout_ms};
    if (path && *path) {
        tq_status_t rc = read_key(path, key, err);
        if (rc != TQ_OK)
            return rc;
        conf.curve_server_key = key;
    }
    return tq_client_open(&conf, &cli->client, err);
}

int cli_connect(cli_t *cli)
{
    tq_error_t err;
    tq_status_t rc = cli_open(cli, &err);
    return rc == TQ_OK ? CLI_OK : cli_fail(cli, rc, err.text);
}

int cli_finish(const cli_t *cli, tq_status_t submitted, const tq_error_t *err, tq_op_t **op)
{
    if (submitted != TQ_OK) {
        *op = NULL;
        return cli_fail(cli, submitted, err->text);
    }
    tq_op_wait(*op, -1);
    if (tq_op_status(*op) == TQ_OK)
        return CLI_OK;
    int code = cli_fail(cli, tq_op_status(*op), tq_op_error(*op));
    tq_op_free(*op);
    *op = NULL;
    return code;
}

/* ---- arguments ------------------------------------------------------------------------------- */

/* Reads everything behind the command. CLI_OK or says what is wrong. */
static int read_arguments(cli_t *cli, int argc, char **argv)
{
    bool is_rest = false;
    for (int i = 2; i < argc; i++) {
        const char *arg = argv[i];
        bool has_next = i + 1 < argc;
        if (is_rest || arg[0] != '-' || arg[1] == 0) {
            if (cli->words_cnt == CLI_WORDS_MAX)
                return cli_usage(cli, "more than %d arguments", CLI_WORDS_MAX);
            cli->words[cli->words_cnt++] = arg;
        } else if (strcmp(arg, "--") == 0) {
            is_rest = true;
        } else if (strcmp(arg, "--json") == 0) {
            cli->is_json = true;
        } else if (strcmp(arg, "--all") == 0) {
            cli->is_all = true;
        } else if (strcmp(arg, "--stuck") == 0) {
            cli->is_stuck = true;
        } else if (strcmp(arg, "--metrics") == 0) {
            cli->is_metrics = true;
        } else if (strcmp(arg, "--fields") == 0) {
            cli->is_fields = true;
        } else if (strcmp(arg, "--address") == 0 && has_next) {
            cli->address = argv[++i];
        } else if (strcmp(arg, "--server-key") == 0 && has_next) {
            cli->server_key = argv[++i];
        } else if (strcmp(arg, "-o") == 0 && has_next) {
            cli->out = argv[++i];
        } else if (strcmp(arg, "--timeout") == 0 && has_next) {
            char *end;
            double seconds = strtod(argv[++i], &end);
            if (*end || !(seconds > 0 && seconds < 4e6))
                return cli_usage(cli, "--timeout: '%s' is no number of seconds", argv[i]);
            cli->timeout_ms = (uint32_t)(seconds * 1000) + 1;
        } else if (strcmp(arg, "--tag") == 0 && has_next && cli->tags_cnt < CLI_LISTS_MAX) {
            cli->tags[cli->tags_cnt++] = argv[++i];
        } else if (strcmp(arg, "--field") == 0 && has_next && cli->fields_cnt < CLI_LISTS_MAX) {
            cli->fields[cli->fields_cnt++] = argv[++i];
        } else {
            return cli_usage(cli, "unknown option, or one without its value: '%s'", arg);
        }
    }
    return CLI_OK;
}

int main(int argc, char **argv)
{
    static cli_t cli;
    if (argc < 2) {
        print_usage(stderr);
        return CLI_USAGE;
    }
    cli.command = argv[1];
    cli.timeout_ms = 30000;
    if (strcmp(cli.command, "--help") == 0 || strcmp(cli.command, "help") == 0) {
        print_usage(stdout);
        return CLI_OK;
    }
    if (strcmp(cli.command, "--version") == 0 || strcmp(cli.command, "version") == 0) {
        printf("tq %s\n", tq_version());
        return CLI_OK;
    }
    for (size_t i = 0; i < COMMANDS_CNT; i++) {
        if (strcmp(commands[i].name, cli.command) != 0)
            continue;
        int code = read_arguments(&cli, argc, argv);
        if (code == CLI_OK)
            code = commands[i].run(&cli);
        tq_client_close(cli.client);
        if (fflush(stdout) != 0 && code == CLI_OK)
            code = CLI_OTHER;
        return code;
    }
    fprintf(stderr, "tq: no command '%s'; see tq --help\n", cli.command);
    return CLI_USAGE;
}
