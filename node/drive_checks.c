/* The checks that look at the drives under a model's files; several stores are several sentences of one finding. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>

#include "common/budget.h"
#include "node/system_checks.h"

/* Magic numbers of statfs(2); not all of them are in a header. */
#define SLOW_NETWORK                                                                                                                       \
    "a network file system: every expert crosses the network", "copy the experts files to a local drive and name it with --store"
static const struct file_system_kind kinds[] = {
    {0xef53, "ext4", NULL, NULL}, /* and ext2, ext3 */
    {0x58465342, "xfs", NULL, NULL},
    {0xf2f52010, "f2fs", NULL, NULL},
    {0x01021994, "tmpfs", "in memory: the files take the memory that experts need", "keep the model on a drive"},
    {0x858458f6, "ramfs", "in memory: the files take the memory that experts need", "keep the model on a drive"},
    {0x9123683e, "btrfs", "copy on write, perhaps compressed: O_DIRECT reads of compressed files go through memory",
     "put the files in a folder with chattr +C before copying them, without compression"},
    {0x2fc12fc1, "zfs", "copy on write with a cache of its own (ARC): experts are kept in memory twice",
     "zfs set recordsize=1M compression=off primarycache=metadata for this dataset, or use ext4 or xfs"},
    {0xca451a4e, "bcachefs", "copy on write, perhaps compressed", "copy the files without compression, or use ext4 or xfs"},
    {0x73717368, "squashfs", "compressed", "unpack the model to ext4 or xfs"},
    {0xe0f5e1e2, "erofs", "perhaps compressed", "unpack the model to ext4 or xfs"},
    {0x794c7630, "overlayfs", "a container's layers: use of the drive depends on what lies below",
     "mount the model's folder into the container as a volume"},
    {0x65735546, "fuse", "a file system in a process (sshfs, ntfs-3g, virtiofs, ...): slower than the drive",
     "use a file system of the kernel: ext4 or xfs"},
    {0x6969, "nfs", SLOW_NETWORK},
    {0xff534d42, "cifs", SLOW_NETWORK},
    {0xfe534d42, "smb2", SLOW_NETWORK},
    {0x00c36400, "ceph", SLOW_NETWORK},
    {0x01021997, "9p", "the host's files through 9p: slow", "give the virtual machine a block device, or use virtiofs"},
    {0x786f4256, "vboxsf", "the host's files through vboxsf: slow", "give the virtual machine a disk"},
    {0x7366746e, "ntfs3", "slower than a file system of Linux", "ext4 or xfs, if the drive need not be read by Windows"},
    {0x5346544e, "ntfs", "slower than a file system of Linux", "ext4 or xfs, if the drive need not be read by Windows"},
    {0x2011bab0, "exfat", "slower than a file system of Linux", "ext4 or xfs, if the drive need not be read by others"},
    {0x4d44, "vfat", "files end at 4 GiB, slow", "ext4 or xfs"},
};

const struct file_system_kind *file_system_kind(long magic)
{
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (kinds[i].magic == (magic & 0xffffffff))
            return &kinds[i];
    return NULL;
}

/* A store's first file stands for all of them. */
static const struct drive_file *first_file(const struct drive_files *files, int store)
{
    for (int i = 0; i < files->n_files; i++)
        if (files->files[i].store == store)
            return &files->files[i];
    return NULL;
}

void check_direct_reads(const struct system_view *view, struct finding *finding)
{
    const struct drive_files *f = view->files;
    for (int store = 0; store < f->n_stores; store++) {
        int n = 0, n_failed = 0, why = 0;
        for (int i = 0; i < f->n_files; i++)
            if (f->files[i].store == store) {
                n++;
                n_failed += !!f->files[i].direct_errno;
                why = f->files[i].direct_errno ? f->files[i].direct_errno : why;
            }
        if (!n_failed) {
            finding_add(finding, FINDING_OK, "%s: works on %s%d files", f->stores[store], n > 1 ? "all " : "", n);
            continue;
        }
        finding_add(finding, FINDING_WARNING, "%s: not possible on %d of %d files (%s): reads go through the page cache", f->stores[store],
                    n_failed, n, strerror(why));
        finding_advise(
            finding,
            "ext4 or xfs on a local drive with blocks of at most 4096 bytes; through the cache every read costs memory and CPU time");
    }
}

void check_file_system(const struct system_view *view, struct finding *finding)
{
    const struct drive_files *f = view->files;
    for (int store = 0; store < f->n_stores; store++) {
        struct statfs fs;
        const struct drive_file *file = first_file(f, store);
        if (!file || fstatfs(file->fd, &fs)) {
            finding_add(finding, FINDING_OK, "%s: not visible here", f->stores[store]);
            continue;
        }
        const struct file_system_kind *kind = file_system_kind((long)fs.f_type);
        if (!kind)
            finding_add(finding, FINDING_OK, "%s: of a kind not known to us (0x%lx)", f->stores[store], (long)fs.f_type & 0xffffffff);
        else
            finding_add(finding, kind->remark ? FINDING_WARNING : FINDING_OK, "%s: %s%s%s", f->stores[store], kind->name,
                        kind->remark ? ", " : "", kind->remark ? kind->remark : "");
        if (kind && kind->remedy)
            finding_advise(finding, "%s", kind->remedy);
    }
}

enum drive_kind { DRIVE_UNKNOWN, DRIVE_VIRTUAL, DRIVE_ROTATES, DRIVE_STILL };

/* A partition has no queue of its own; the disk is the folder around it. Virtual disks say that they rotate, whatever lies under them. */
static enum drive_kind drive_kind(const struct system_view *view, dev_t device)
{
    static const char *const places[] = {"queue/rotational", "../queue/rotational"};
    char path[128], line[64];
    snprintf(path, sizeof path, "/sys/dev/block/%u:%u/uevent", major(device), minor(device));
    if (view_value(view, path, "DEVNAME=", line, sizeof line) && (!strncmp(line, "vd", 2) || !strncmp(line, "xvd", 3)))
        return DRIVE_VIRTUAL;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        snprintf(path, sizeof path, "/sys/dev/block/%u:%u/%s", major(device), minor(device), places[i]);
        if (view_line(view, path, line, sizeof line))
            return *line == '1' ? DRIVE_ROTATES : DRIVE_STILL;
    }
    return DRIVE_UNKNOWN;
}

void check_drive_kind(const struct system_view *view, struct finding *finding)
{
    static const char *const texts[] = {[DRIVE_UNKNOWN] = "not visible here",
                                        [DRIVE_VIRTUAL] = "a virtual disk; what lies under it is not visible here",
                                        [DRIVE_ROTATES] = "rotates",
                                        [DRIVE_STILL] = "does not rotate"};
    const struct drive_files *f = view->files;
    for (int store = 0; store < f->n_stores; store++) {
        struct stat st;
        const struct drive_file *file = first_file(f, store);
        enum drive_kind kind = !file || fstat(file->fd, &st) ? DRIVE_UNKNOWN : drive_kind(view, st.st_dev);
        finding_add(finding, kind == DRIVE_ROTATES ? FINDING_WARNING : FINDING_OK, "%s: %s", f->stores[store], texts[kind]);
        if (kind == DRIVE_ROTATES)
            finding_advise(finding, "experts are read at random: an NVMe drive is 20 to 50 times faster; see the rate below");
    }
}

/* ---- the rate ---- */

enum { RATE_DEPTH = 8 }; /* what the engine keeps in flight per store by default */

static void add_rate(const struct drive_files *f, int store, const struct drive_extent *extents, const struct drive_rate *rate,
                     struct finding *finding)
{
    /* Below this, a token of GLM-5.2 without hits (12 GB in int4) takes above 20 s: nothing that one waits for. */
    static const double slow = 0.6e9;
    char piece[32], whole[32];
    double gb_per_s = rate->bytes_per_second / 1e9;
    finding_add(finding, rate->bytes_per_second < slow ? FINDING_WARNING : FINDING_OK,
                "%s: %.*f GB/s (%s of %s in pieces of %s, %d in flight; half of the pieces within %.2f ms, 99 %% within %.2f ms)",
                f->stores[store], gb_per_s < 0.1 ? 4 : 2, gb_per_s, f->is_pack ? "records" : "extents", bytes_text(extents->bytes, whole),
                bytes_text(drive_files_piece_bytes(f), piece), RATE_DEPTH, (double)rate->p50_ns / 1e6, (double)rate->p99_ns / 1e6);
    if (rate->bytes_per_second < slow)
        finding_advise(finding, "a faster drive, or one more beside it (--store A,B), or more memory: what is in memory is not read");
}

static enum status measure(const struct system_view *view, struct block_reader *reader, struct finding *finding, struct error *err)
{
    const struct drive_files *f = view->files;
    double sum = 0;
    for (int store = 0; store < f->n_stores; store++) {
        struct drive_load load = {
            .piece_bytes = drive_files_piece_bytes(f), .depth = RATE_DEPTH, .time_ns = view->drive_time_ns, .seed = (uint64_t)store + 1};
        struct drive_rate rate;
        load.extents = drive_files_store(f, store, &load.n_extents);
        drive_files_forget(f);
        enum status status = drive_rate_measure(&rate, reader, &load, err);
        if (status)
            return status;
        add_rate(f, store, load.extents, &rate, finding);
        sum += rate.bytes_per_second;
    }
    char text[32];
    if (f->token_bytes)
        finding_add(finding, FINDING_OK, "a token's experts, %s, in %.3g s when none is in memory", bytes_text(f->token_bytes, text),
                    (double)f->token_bytes / sum);
    return STATUS_OK;
}

void check_drive_rate(const struct system_view *view, struct finding *finding)
{
    struct block_reader *reader;
    struct error err;
    enum status status = block_reader_open(&reader, view->reader, RATE_DEPTH, &err);
    if (!status) {
        status = measure(view, reader, finding, &err);
        reader->close(reader, 1000000000);
    }
    if (status) {
        finding_add(finding, FINDING_PROBLEM, "%s", err.text);
        finding_advise(finding, "look at the drive (dmesg, smartctl); hearth inspect compares all checksums");
    }
}
