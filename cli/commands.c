/* The table of subcommands. */
#include "cli/commands.h"

const struct command *const commands[] = {
    &convert_command,
    &synth_command,
    &inspect_command,
    &run_command,
    &chat_command,
    &bench_kernels_command,
    &tokenize_command,
    &render_command,
    &logits_command,
    &status_command,
#ifdef HEARTH_NETWORK
    &bench_cache_command,
    &bench_disk_command,
    &bench_experts_command,
    &keys_new_command,
    &keys_show_command,
    &keys_trust_command,
    &doctor_command,
    &probe_command,
    &plan_command,
#endif
    NULL,
};
