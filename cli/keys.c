/* hearth keys: the pairs by which machines of a cluster know each other, and the lists of those that may join. */
#include <stdio.h>

#include "cli/commands.h"
#include "proto/curve_keys.h"

static enum status print_key(const struct key_pair *pair)
{
    puts(pair->public_key);
    return STATUS_OK;
}

static enum status run_new(const void *options, const char **arguments, int n_arguments, struct error *err)
{
    (void)options, (void)n_arguments;
    struct key_pair pair;
    enum status status = key_pair_create(arguments[0], &pair, err);
    return status ? status : print_key(&pair);
}

static enum status run_show(const void *options, const char **arguments, int n_arguments, struct error *err)
{
    (void)options, (void)n_arguments;
    struct key_pair pair;
    enum status status = key_pair_read(arguments[0], &pair, err);
    return status ? status : print_key(&pair);
}

static enum status run_trust(const void *options, const char **arguments, int n_arguments, struct error *err)
{
    (void)options, (void)n_arguments;
    return trusted_keys_add(arguments[0], arguments[1], arguments[2], err);
}

const struct command keys_new_command = {
    .name = "keys new",
    .arguments = "FILE",
    .summary = "Make a key pair for this machine and print its public key.",
    .details = "FILE gets mode 0600 and is never overwritten. Every machine of a cluster has a pair of its own; only the public key ever "
               "leaves it.",
    .n_arguments_min = 1,
    .n_arguments_max = 1,
    .run = run_new,
};

const struct command keys_show_command = {
    .name = "keys show",
    .arguments = "FILE",
    .summary = "Print the public key of a pair.",
    .n_arguments_min = 1,
    .n_arguments_max = 1,
    .run = run_show,
};

const struct command keys_trust_command = {
    .name = "keys trust",
    .arguments = "LIST KEY NAME",
    .summary = "Add a node's public key to the list of those that may join.",
    .details = "LIST is the file that hearth-coordinator --trust reads, one \"KEY NAME\" a line; it is created when it is not there. NAME "
               "is the node's name.\n"
               "Keys hold characters that shells treat as their own: put KEY in single quotes.",
    .n_arguments_min = 3,
    .n_arguments_max = 3,
    .run = run_trust,
};
