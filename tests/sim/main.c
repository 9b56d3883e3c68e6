/* SPDX-License-Identifier: Apache-2.0 */
/*
 * usage: sim [--seed N | --seeds N [--from N | --fresh]] [--shard I/N] [--list FILE]
 *            [--strike WHAT [--at N]] [--every N] [--steps N] [--outside] [--mutant N]
 *            [--history FILE] [--verbose]
 *        sim --pairs FILE
 *        sim --pick N [--seeds N] [--from N]
 *
 * --seed N     that seed alone
 * --seeds N    so many, from --from (1); TQ_SIM_SEEDS overrides it
 * --fresh      from a number that the time makes, and that is printed
 * --strike W   one fault W and no other: with --at N at the N-th frame that clients send or are
 *              sent, else each seed as many times as it has frames, once at each
 * --shard I/N  of these and of the list, those whose number is I modulo N
 * --list FILE  seeds that failed once: they are run first
 * --every N    events between the checks that walk everything
 * --steps N    stops after so many events
 * --outside    without the roles' own checks: what callers and frames tell is all that counts
 * --mutant N   with that fault planted; in sim_mutants alone (see tools/mutants)
 * --history FILE  what the clients saw, for tests/oracle/check.py; of one seed
 * --pairs FILE the seeds of the list, then the (state, event) pairs that were met; 1 where one was
 *              not
 * --pick N     writes such a list: the seeds that met a pair which fewer than N before them had met
 * --verbose    every frame and every op, with its virtual time
 */
#include <getopt.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "history.h"
#include "mutants.h"
#include "pairs.h"
#include "world.h"

/* A seed takes milliseconds; one that takes so long hangs in a loop. */
#define SEED_SECONDS_MAX 120

static uint64_t running_seed;
static const sim_options_t *running_options;

static void on_crash(int signal_number)
{
    world_print_replay(running_seed, running_options);
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

static void add(sim_totals_t *sum, const sim_totals_t *one)
{
    sum->events += one->events;
    sum->ops += one->ops;
    sum->ops_ok += one->ops_ok;
    sum->puts_ok += one->puts_ok;
    sum->gets_ok += one->gets_ok;
    sum->cells_read += one->cells_read;
    sum->grants += one->grants;
    sum->faults += one->faults;
    for (int i = 0; i < STRIKES_CNT; i++)
        sum->strikes[i] += one->strikes[i];
}

static void run_seed(uint64_t seed, const sim_options_t *options, sim_totals_t *sum, uint64_t *cnt)
{
    sim_totals_t one = {0};

    running_seed = seed;
    running_options = options;
    alarm(SEED_SECONDS_MAX);
    world_run(seed, options, &one);
    add(sum, &one);
    (*cnt)++;
    if (options->is_verbose)
        printf("seed %" PRIu64 ": digest %016" PRIx64 "\n", seed, one.digest);
}

/* The one fault at each frame, until it has come too late to be met. */
static void run_strikes(uint64_t seed, const sim_options_t *options, sim_totals_t *sum,
                        uint64_t *cnt)
{
    sim_options_t at = *options;
    uint64_t before;

    do {
        before = sum->strikes[at.strike];
        at.strike_at++;
        run_seed(seed, &at, sum, cnt);
    } while (sum->strikes[at.strike] > before);
}

static void run(uint64_t seed, const sim_options_t *options, sim_totals_t *sum, uint64_t *cnt)
{
    if (options->strike && !options->strike_at)
        run_strikes(seed, options, sum, cnt);
    else
        run_seed(seed, options, sum, cnt);
}

static strike_t strike_of(const char *name)
{
    for (int i = STRIKE_NONE + 1; i < STRIKES_CNT; i++)
        if (strcmp(strike_name((strike_t)i), name) == 0)
            return (strike_t)i;
    fprintf(stderr, "sim: --strike takes");
    for (int i = STRIKE_NONE + 1; i < STRIKES_CNT; i++)
        fprintf(stderr, " %s", strike_name((strike_t)i));
    fprintf(stderr, "\n");
    exit(2);
}

/* The seeds of a list, one a line; what follows a number, and lines without one, are remarks. */
static void run_list(const char *path, uint64_t shard, uint64_t shards,
                     const sim_options_t *options, sim_totals_t *sum, uint64_t *cnt)
{
    FILE *file = fopen(path, "r");
    char line[256];

    if (!file) {
        fprintf(stderr, "sim: can't read %s\n", path);
        exit(2);
    }
    while (fgets(line, sizeof line, file)) {
        char *end;
        uint64_t seed = strtoull(line, &end, 10);
        if (end != line && seed % shards == shard)
            run(seed, options, sum, cnt);
    }
    fclose(file);
}

int main(int argc, char **argv)
{
    static const struct option options_known[] = {
        {"seed", required_argument, NULL, 's'},
        {"seeds", required_argument, NULL, 'n'},
        {"from", required_argument, NULL, 'f'},
        {"shard", required_argument, NULL, 'h'},
        {"list", required_argument, NULL, 'l'},
        {"every", required_argument, NULL, 'e'},
        {"steps", required_argument, NULL, 't'},
        {"outside", no_argument, NULL, 'o'},
        {"mutant", required_argument, NULL, 'm'},
        {"pairs", required_argument, NULL, 'p'},
        {"pick", required_argument, NULL, 'k'},
        {"fresh", no_argument, NULL, 'r'},
        {"strike", required_argument, NULL, 'w'},
        {"at", required_argument, NULL, 'a'},
        {"history", required_argument, NULL, 'y'},
        {"verbose", no_argument, NULL, 'v'},
        {0},
    };
    sim_options_t options = {.program = argv[0], .check_every = 100};
    sim_totals_t sum = {0};
    uint64_t from = 1, seeds = 100, shard = 0, shards = 1, cnt = 0;
    const char *list = NULL, *wanted = getenv("TQ_SIM_SEEDS");
    bool is_one = false, is_pairs = false;
    unsigned pick = 0;
    FILE *history = NULL;
    int c;

    if (wanted)
        seeds = strtoull(wanted, NULL, 10);
    while ((c = getopt_long(argc, argv, "", options_known, NULL)) != -1) {
        switch (c) {
        case 's':
            from = strtoull(optarg, NULL, 10);
            is_one = true;
            break;
        case 'n':
            if (!wanted)
                seeds = strtoull(optarg, NULL, 10);
            break;
        case 'f':
            from = strtoull(optarg, NULL, 10);
            break;
        case 'r':
            from = (uint64_t)time(NULL) * 1000000;
            printf("fresh seeds from %" PRIu64 "\n", from);
            break;
        case 'w':
            options.strike = strike_of(optarg);
            break;
        case 'a':
            options.strike_at = strtoull(optarg, NULL, 10);
            break;
        case 'h':
            if (sscanf(optarg, "%" SCNu64 "/%" SCNu64, &shard, &shards) != 2 || shard >= shards) {
                fprintf(stderr, "sim: --shard is I/N with I below N\n");
                return 2;
            }
            break;
        case 'l':
            list = optarg;
            break;
        case 'e':
            options.check_every = (uint32_t)strtoul(optarg, NULL, 10);
            break;
        case 't':
            options.steps_max = strtoull(optarg, NULL, 10);
            break;
        case 'o':
            options.is_outside_only = true;
            break;
        case 'm':
            sim_mutant = (unsigned)strtoul(optarg, NULL, 10);
            if (sim_mutant == 0 || sim_mutant > sim_mutants_cnt) {
                fprintf(stderr, "sim: mutant %s of %u\n", optarg, sim_mutants_cnt);
                return 2;
            }
            break;
        case 'y':
            history = fopen(optarg, "w");
            if (!history) {
                fprintf(stderr, "sim: can't write %s\n", optarg);
                return 2;
            }
            break;
        case 'p':
            is_pairs = true;
            list = optarg;
            break;
        case 'k':
            pick = (unsigned)strtoul(optarg, NULL, 10);
            break;
        case 'v':
            options.is_verbose = true;
            break;
        default:
            fprintf(stderr, "usage: sim [--seed N | --seeds N [--from N | --fresh]] [--shard I/N] "
                            "[--list FILE] [--strike WHAT [--at N]] [--every N] [--steps N] "
                            "[--outside] [--mutant N] [--history FILE] "
                            "[--verbose]\n"
                            "       sim --pairs FILE\n"
                            "       sim --pick N [--seeds N] [--from N]\n");
            return 2;
        }
    }
    if (options.check_every == 0)
        options.check_every = 1;
    signal(SIGABRT, on_crash);
    signal(SIGSEGV, on_crash);
    signal(SIGBUS, on_crash);
    signal(SIGALRM, on_crash);
    if (history && !is_one) {
        fprintf(stderr, "sim: --history is of one seed\n");
        return 2;
    }
    history_to(history);
    if (is_one) {
        run(from, &options, &sum, &cnt);
    } else {
        if (list)
            run_list(list, shard, shards, &options, &sum, &cnt);
        for (uint64_t seed = from; seed < from + seeds && !is_pairs; seed++) {
            if (seed % shards != shard)
                continue;
            run(seed, &options, &sum, &cnt);
            if (pick > 0 && pairs_adds(pick))
                printf("%" PRIu64 "\n", seed);
        }
    }
    if (history)
        fclose(history);
    printf("puts %" PRIu64 ", gets %" PRIu64 " of %" PRIu64 " cells, grants %" PRIu64
           ", faults %" PRIu64 ", ops that succeeded %" PRIu64 "\n",
           sum.puts_ok, sum.gets_ok, sum.cells_read, sum.grants, sum.faults, sum.ops_ok);
    for (int i = STRIKE_NONE + 1; i < STRIKES_CNT; i++)
        printf("%s %" PRIu64 "%s", strike_name((strike_t)i), sum.strikes[i],
               i + 1 < STRIKES_CNT ? ", " : "\n");
    printf("seeds %" PRIu64 ", events %" PRIu64 ", ops %" PRIu64 "\n", cnt, sum.events, sum.ops);
    return is_pairs && !pairs_report(stdout);
}
