/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tqd: a store, a controller or a unit as a daemon.
 *
 * Exit codes: 0 stopped when asked to; 2 bad usage or configuration; 3 an address can't be listened
 * on; 4 the controller can't be reached; 1 anything else.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <tq/host.h>
#include <tq/tq.h>
#include <unistd.h>

#include "conf/conf.h"

typedef enum exit_code {
    EXIT_STOPPED = 0,
    EXIT_OTHER = 1,
    EXIT_USAGE = 2,
    EXIT_ADDRESS = 3,
    EXIT_CONTROLLER = 4,
} exit_code_t;

typedef struct arguments {
    const char *config;
    const char *genkey;
    int ready_fd;
    bool is_check;
    bool is_print;
} arguments_t;

/* What runs here: one of the three. */
typedef struct running {
    tq_controller_t *controller;
    tq_unit_t *unit;
    tq_store_t *store;
} running_t;

static exit_code_t exit_code_of(tq_status_t status)
{
    switch (status) {
    case TQ_E_CONFIG:
    case TQ_E_INVALID:
    case TQ_E_NO_SAMPLER:
        return EXIT_USAGE;
    case TQ_E_ADDRESS:
        return EXIT_ADDRESS;
    case TQ_E_UNREACHABLE:
        return EXIT_CONTROLLER;
    default:
        return EXIT_OTHER;
    }
}

static exit_code_t complain(const tq_error_t *err)
{
    fprintf(stderr, "tqd: %s\n", err->text);
    return exit_code_of(err->status);
}

static void usage(FILE *out)
{
    fputs(
        "usage: tqd [--config FILE] [--OPTION VALUE]...\n"
        "\n"
        "Runs a store, a controller or a storage unit until SIGTERM or SIGINT; it then finishes "
        "or\n"
        "refuses what is in flight and ends within 10 s. A second signal ends it at once.\n"
        "\n"
        "  --config FILE\n      YAML file of options\n"
        "  --check-config\n      say whether the options are good, and end\n"
        "  --print-config\n      show every option and where it came from, and end\n"
        "  --genkey FOLDER\n      make a CURVE key pair: FOLDER/tq.key and FOLDER/tq.pub, and end\n"
        "  --ready-fd N\n      write the address and a line end to descriptor N once ready\n"
        "  --help, --version\n"
        "\n"
        "Options, stronger before weaker: command line, environment (TQ_UNIT_CAPACITY for\n"
        "unit.capacity), file, [default]:\n\n",
        out);
    tqi_conf_help(out);
}

/* ---- arguments ------------------------------------------------------------------------------- */

/* 0 to go on, else the exit code + 1. */
static int read_arguments(int argc, char **argv, arguments_t *args, tqi_conf_t *conf)
{
    tq_error_t err;
    *args = (arguments_t){.ready_fd = -1};
    for (int i = 1; i < argc; i++) {
        const char *arg = argv[i], *next = i + 1 < argc ? argv[i + 1] : NULL;
        int used = 0;
        if (strcmp(arg, "--help") == 0) {
            usage(stdout);
            return 1 + EXIT_STOPPED;
        } else if (strcmp(arg, "--version") == 0) {
            printf("tqd %s\n", tq_version());
            return 1 + EXIT_STOPPED;
        } else if (strcmp(arg, "--check-config") == 0) {
            args->is_check = true;
        } else if (strcmp(arg, "--print-config") == 0) {
            args->is_print = true;
        } else if (strcmp(arg, "--config") == 0 && next) {
            args->config = argv[++i];
        } else if (strcmp(arg, "--genkey") == 0 && next) {
            args->genkey = argv[++i];
        } else if (strcmp(arg, "--ready-fd") == 0 && next) {
            char *end;
            long fd = strtol(argv[++i], &end, 10);
            if (*end || end == argv[i] || fd < 0 || fd > INT_MAX || fcntl((int)fd, F_GETFD) < 0) {
                fprintf(stderr, "tqd: --ready-fd: '%s' is no open descriptor\n", argv[i]);
                return 1 + EXIT_USAGE;
            }
            args->ready_fd = (int)fd;
        } else if (tqi_conf_load_flag(conf, arg, next, &used, &err) != TQ_OK) {
            return 1 + (int)complain(&err);
        } else if (used == 0) {
            fprintf(stderr, "tqd: unknown argument '%s'; see tqd --help\n", arg);
            return 1 + EXIT_USAGE;
        } else {
            i += used - 1;
        }
    }
    return 0;
}

/* ---- keys ------------------------------------------------------------------------------------ */

static bool write_key(const char *folder, const char *name, const char *key, mode_t mode)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    bool is_ok = fd >= 0 && write(fd, key, 40) == 40 && write(fd, "\n", 1) == 1;
    if (!is_ok)
        fprintf(stderr, "tqd: cannot write %s: %s\n", path, strerror(errno));
    if (fd >= 0 && close(fd) != 0)
        is_ok = false;
    return is_ok;
}

static exit_code_t generate_key(const char *folder)
{
    char public[41], secret[41];
    tq_error_t err;
    if (tq_keypair(public, secret, &err) != TQ_OK)
        return complain(&err);
    if (!write_key(folder, "tq.key", secret, 0600) || !write_key(folder, "tq.pub", public, 0644))
        return EXIT_OTHER;
    printf("%s/tq.key is the secret key (security.secret_key_file); %s/tq.pub the public one\n",
           folder, folder);
    return EXIT_STOPPED;
}

/* Reads a key file of one option into key ("" when the option is empty). */
static tq_status_t read_key(const tqi_conf_t *conf, tqi_option_t option, bool is_secret,
                            char key[64], tq_error_t *err)
{
    const char *path = tqi_conf_text(conf, option);
    struct stat st;
    key[0] = 0;
    if (!*path)
        return TQ_OK;
    FILE *file = fopen(path, "re");
    if (!file || fstat(fileno(file), &st) != 0) {
        err->status = TQ_E_CONFIG;
        snprintf(err->text, sizeof err->text, "cannot read key file %s: %s", path, strerror(errno));
    } else if (is_secret && (st.st_mode & 077)) {
        err->status = TQ_E_CONFIG;
        snprintf(err->text, sizeof err->text,
                 "secret key file %s can be read by others (mode %03o); run chmod 600 %s", path,
                 (unsigned)(st.st_mode & 0777), path);
    } else if (!fgets(key, 64, file)) {
        err->status = TQ_E_CONFIG;
        snprintf(err->text, sizeof err->text, "key file %s is empty", path);
    } else {
        key[strcspn(key, "\n")] = 0;
        err->status = TQ_OK;
    }
    if (file)
        fclose(file);
    return err->status;
}

/* ---- running --------------------------------------------------------------------------------- */

static const char *text_or_null(const tqi_conf_t *conf, tqi_option_t option)
{
    const char *text = tqi_conf_text(conf, option);
    return *text ? text : NULL;
}

/* Starts what the options ask for; *address is where it can be reached. */
static tq_status_t start(const tqi_conf_t *conf, running_t *run, const char **address,
                         tq_error_t *err)
{
    char secret[64], public[64], server[64];
    const char *role = tqi_conf_text(conf, TQI_OPTION_ROLE);
    tq_status_t rc = read_key(conf, TQI_OPTION_SECURITY_SECRET_KEY_FILE, true, secret, err);
    if (rc == TQ_OK)
        rc = read_key(conf, TQI_OPTION_SECURITY_PUBLIC_KEY_FILE, false, public, err);
    if (rc == TQ_OK)
        rc = read_key(conf, TQI_OPTION_SECURITY_SERVER_KEY_FILE, false, server, err);
    if (rc != TQ_OK)
        return rc;
    if (!secret[0] != !public[0]) {
        snprintf(err->text, sizeof err->text,
                 "security.%s_key_file is given without security.%s_key_file: give both (tqd "
                 "--genkey makes them), or none",
                 secret[0] ? "secret" : "public", secret[0] ? "public" : "secret");
        return err->status = TQ_E_CONFIG;
    }
    tq_controller_conf_t controller = {
        .listen = text_or_null(conf, TQI_OPTION_CONTROLLER_LISTEN),
        .advertise = text_or_null(conf, TQI_OPTION_CONTROLLER_ADVERTISE),
        .sampler = text_or_null(conf, TQI_OPTION_CONTROLLER_SAMPLER),
        .sampler_group = (uint32_t)tqi_conf_number(conf, TQI_OPTION_CONTROLLER_SAMPLER_GROUP),
        .sampler_group_by = text_or_null(conf, TQI_OPTION_CONTROLLER_SAMPLER_GROUP_BY),
        .prealloc_rows = (uint32_t)tqi_conf_number(conf, TQI_OPTION_CONTROLLER_PREALLOC_ROWS),
        .silence_ms = (uint32_t)tqi_conf_number(conf, TQI_OPTION_CONTROLLER_SILENCE),
        .unit_lost_ms = (uint32_t)tqi_conf_number(conf, TQI_OPTION_CONTROLLER_UNIT_LOST),
        .curve_secret_key = secret[0] ? secret : NULL,
        .curve_public_key = public[0] ? public : NULL,
    };
    if (strcmp(role, "controller") == 0) {
        rc = tq_controller_open(&controller, &run->controller, err);
        *address = rc == TQ_OK ? tq_controller_address(run->controller) : NULL;
    } else if (strcmp(role, "unit") == 0) {
        tq_unit_conf_t unit = {
            .controller = tqi_conf_text(conf, TQI_OPTION_UNIT_CONTROLLER),
            .listen = text_or_null(conf, TQI_OPTION_UNIT_LISTEN),
            .advertise = text_or_null(conf, TQI_OPTION_UNIT_ADVERTISE),
            .listen_payload = text_or_null(conf, TQI_OPTION_UNIT_LISTEN_PAYLOAD),
            .capacity_bytes = tqi_conf_number(conf, TQI_OPTION_UNIT_CAPACITY),
            .column_reserve_percent =
                (uint32_t)tqi_conf_number(conf, TQI_OPTION_UNIT_COLUMN_RESERVE),
            .lease_ms = (uint32_t)tqi_conf_number(conf, TQI_OPTION_UNIT_LEASE),
            .curve_secret_key = secret[0] ? secret : NULL,
            .curve_public_key = public[0] ? public : NULL,
            .curve_server_key = server[0] ? server : NULL,
        };
        rc = tq_unit_open(&unit, &run->unit, err);
        *address = rc == TQ_OK ? tq_unit_address(run->unit) : NULL;
    } else {
        tq_store_conf_t store = {
            .controller = controller,
            .units_cnt = (uint32_t)tqi_conf_number(conf, TQI_OPTION_STORE_UNITS),
            .capacity_bytes = tqi_conf_number(conf, TQI_OPTION_UNIT_CAPACITY),
        };
        rc = tq_store_open(&store, &run->store, err);
        *address = rc == TQ_OK ? tq_store_public_address(run->store) : NULL;
    }
    return rc;
}

/* An address that can't be listened on came from an option: its name goes in front. */
static void name_option(const tqi_conf_t *conf, tq_error_t *err)
{
    bool is_unit = strcmp(tqi_conf_text(conf, TQI_OPTION_ROLE), "unit") == 0;
    char text[TQ_ERROR_TEXT_MAX];
    if (err->status != TQ_E_ADDRESS)
        return;
    snprintf(text, sizeof text, "%s", err->text);
    snprintf(err->text, sizeof err->text, "%s: %.480s",
             is_unit ? "unit.listen" : "controller.listen", text);
}

static void stop(running_t *run)
{
    tq_store_close(run->store);
    tq_unit_close(run->unit);
    tq_controller_close(run->controller);
}

/* ---- limits ---------------------------------------------------------------------------------- */

#define FILES_FEW 4096u
#define FILES_LOOK_MS 2000 /* between looks at how many are left */

static rlim_t files_max(void)
{
    struct rlimit limit;
    return getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur : RLIM_INFINITY;
}

/* As many files as we are allowed to allow ourselves. */
static void raise_limits(void)
{
    struct rlimit limit;
    /* A memory file past the limit of file sizes is an error to report, not the end. */
    signal(SIGXFSZ, SIG_IGN);
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return;
    if (limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        if (setrlimit(RLIMIT_NOFILE, &limit) != 0)
            fprintf(stderr, "tqd: cannot raise the limit of open files to its hard limit: %s\n",
                    strerror(errno));
    }
    if (files_max() < FILES_FEW)
        fprintf(stderr,
                "tqd: this process may have %llu files open, and each client takes two, and two "
                "more with each unit: raise the hard limit for many clients (ulimit -Hn, "
                "LimitNOFILE= of systemd)\n",
                (unsigned long long)files_max());
}

/* Says when files run out, and when they are there again: clients that can't connect can't be told.
 * The lowest free number tells how many are open. */
static bool tell_files(int any, bool was_short)
{
    rlim_t max = files_max(), spare = max / 64 + 8;
    int free_fd = fcntl(any, F_DUPFD_CLOEXEC, 0);
    bool is_short = free_fd < 0 || (max != RLIM_INFINITY && (rlim_t)free_fd + spare > max);
    if (free_fd >= 0)
        close(free_fd);
    if (is_short && !was_short)
        fprintf(stderr,
                "tqd: nearly all of the %llu files that this process may have open are: new "
                "clients cannot connect. Raise the hard limit (ulimit -Hn, LimitNOFILE= of "
                "systemd), or have fewer clients\n",
                (unsigned long long)max);
    else if (was_short && !is_short)
        fprintf(stderr, "tqd: files can be opened again\n");
    return is_short;
}

/* Signals come as reads from here on; blocked before any thread is made, so that all inherit it. */
static int signals_open(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigprocmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    return signalfd(-1, &set, SFD_CLOEXEC);
}

/* Waits for the first signal, and lets the second one do what it does by default. */
static void wait_signal(int fd)
{
    struct signalfd_siginfo info;
    struct pollfd signalled = {.fd = fd, .events = POLLIN};
    sigset_t set;
    bool is_short = false;
    while (poll(&signalled, 1, FILES_LOOK_MS) <= 0)
        is_short = tell_files(fd, is_short);
    while (read(fd, &info, sizeof info) < 0 && errno == EINTR)
        continue;
    fprintf(stderr, "tqd: stopping on %s\n", info.ssi_signo == SIGTERM ? "SIGTERM" : "SIGINT");
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigprocmask(SIG_UNBLOCK, &set, NULL);
}

static exit_code_t run(const tqi_conf_t *conf, const arguments_t *args)
{
    running_t running = {0};
    tq_error_t err;
    const char *address;
    int signals = signals_open();
    raise_limits();
    setenv("TQ_LOG", tqi_conf_text(conf, TQI_OPTION_LOG_LEVEL), 1);
    if (start(conf, &running, &address, &err) != TQ_OK) {
        name_option(conf, &err);
        return complain(&err);
    }
    printf("tqd: %s ready at %s\n", tqi_conf_text(conf, TQI_OPTION_ROLE), address);
    fflush(stdout);
    if (args->ready_fd >= 0)
        dprintf(args->ready_fd, "%s\n", address);
    wait_signal(signals);
    stop(&running);
    return EXIT_STOPPED;
}

int main(int argc, char **argv)
{
    tqi_conf_t *conf;
    arguments_t args;
    tq_error_t err;
    exit_code_t code = EXIT_STOPPED;
    if (tqi_conf_new(&conf, &err) != TQ_OK)
        return (int)complain(&err);
    int ended = read_arguments(argc, argv, &args, conf);
    if (ended > 0) {
        code = (exit_code_t)(ended - 1);
    } else if (args.genkey) {
        code = generate_key(args.genkey);
    } else if ((args.config && tqi_conf_load_file(conf, args.config, &err) != TQ_OK) ||
               tqi_conf_load_environment(conf, &err) != TQ_OK) {
        code = complain(&err);
    } else if (args.is_print) {
        tqi_conf_print(conf, stdout);
    } else if (args.is_check) {
        puts("tqd: the configuration is good");
    } else {
        code = run(conf, &args);
    }
    tqi_conf_free(conf);
    return (int)code;
}
