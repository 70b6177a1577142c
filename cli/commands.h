/* Every subcommand; each is defined in the file of its name. */
#ifndef HEARTH_CLI_COMMANDS_H
#define HEARTH_CLI_COMMANDS_H

#include "cli/command.h"

extern const struct command convert_command, inspect_command, synth_command, run_command, chat_command, bench_kernels_command, bench_cache_command,
    tokenize_command, render_command, logits_command, status_command, keys_new_command, keys_show_command, keys_trust_command, doctor_command,
    probe_command, plan_command, bench_experts_command, bench_disk_command;

#endif
