/* What a machine does a second, for `hearth plan`: memory and kernels from its profile where there is one (hearth probe), else measured now
 * in about 3 s; drives measured now, unless a profile was named: then that machine's. What one thread does in attention and checksums is
 * always measured now, here. */
#ifndef HEARTH_CLI_PLAN_MACHINE_H
#define HEARTH_CLI_PLAN_MACHINE_H

#include "model/weights_source.h"
#include "node/expert_options.h"
#include "node/speed_plan.h"

struct plan_machine {
    struct speed_machine speed;
    int n_threads;                           /* that the kernels' rates are of */
    int is_profile;                          /* kernels and memory are the profile's */
    int is_disturbed;                        /* measured while other programs used the cores */
    char kernels_text[160], drive_text[160]; /* for people: where the figures come from */
};

struct plan_machine_request {
    const char *dir; /* of the model */
    const struct weights_source *source;
    const struct expert_options *experts;
    const char *profile; /* file; NULL: the state directory's, if it is there and of this machine */
    const char *isa;
    int n_threads;
    int streams; /* 0: drives are not looked at, measured or of a profile */
};

/* Fails with a profile that was named and cannot be read, or a drive that cannot. Pins the threads of this process to cores. */
enum status plan_machine_look(struct plan_machine *machine, const struct plan_machine_request *request, struct error *err);

#endif
