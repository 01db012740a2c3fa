//! Entries of `/proc` that are masked in a run.
//!
//! The sandbox's user is not root, neither outside nor in its own namespace. Files that only root
//! may open need no mask, nor do the settings below `/proc/sys`, which only root may write. The
//! rest are files that reveal the whole machine to every user.

/// An entry of `/proc`, and why it is masked.
#[derive(Debug)]
struct ProcMask {
    path: &'static std::ffi::CStr,
    /// Whether it is a directory. An empty directory masks it, and `/dev/null` masks a file.
    is_directory: bool,
    /// Why it is masked.
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "documentation; a test checks that it is never empty")
    )]
    reason: &'static str,
}

const fn file(path: &'static std::ffi::CStr, reason: &'static str) -> ProcMask {
    ProcMask { path, is_directory: false, reason }
}

const fn directory(path: &'static std::ffi::CStr, reason: &'static str) -> ProcMask {
    ProcMask { path, is_directory: true, reason }
}

/// The masked entries. Entries that the kernel does not have, or that only root may open, are
/// skipped.
const PROC_MASKS: &[ProcMask] = &[
    file(c"/proc/kcore", "the kernel's memory"),
    file(c"/proc/keys", "other users' keyrings"),
    file(c"/proc/key-users", "other users' keyrings"),
    file(c"/proc/interrupts", "timing of the whole machine: a side channel to keystrokes and keys"),
    file(c"/proc/softirqs", "timing of the whole machine"),
    file(c"/proc/timer_list", "kernel addresses and other processes' timers"),
    file(c"/proc/latency_stats", "what other processes wait for"),
    file(c"/proc/sched_debug", "other processes' names and scheduling"),
    file(c"/proc/kallsyms", "kernel addresses"),
    file(c"/proc/config.gz", "how the kernel was built"),
    file(c"/proc/kpagecount", "physical memory"),
    file(c"/proc/kpageflags", "physical memory"),
    file(c"/proc/kpagecgroup", "physical memory"),
    file(c"/proc/kmsg", "the kernel's log"),
    file(c"/proc/iomem", "physical addresses"),
    file(c"/proc/ioports", "physical addresses"),
    file(c"/proc/vmallocinfo", "kernel addresses"),
    file(c"/proc/slabinfo", "kernel memory of the whole machine"),
    file(c"/proc/modules", "what the kernel has loaded"),
    file(c"/proc/sysrq-trigger", "commands to the kernel"),
    directory(c"/proc/acpi", "hardware"),
    directory(c"/proc/asound", "hardware"),
    directory(c"/proc/scsi", "hardware"),
    directory(c"/proc/bus", "hardware"),
    directory(c"/proc/irq", "interrupt routing of the whole machine"),
    directory(c"/proc/fs", "file systems of the whole machine"),
    directory(c"/proc/pressure", "load of the whole machine"),
];

/// The entries that exist and that this process's user could open, and whether each is a directory.
pub(super) fn readable_masks() -> impl Iterator<Item = (&'static std::ffi::CStr, bool)> {
    PROC_MASKS
        .iter()
        .filter(|mask| rustix::fs::access(mask.path, rustix::fs::Access::READ_OK).is_ok())
        .map(|mask| (mask.path, mask.is_directory))
}

#[cfg(test)]
mod tests {
    use super::PROC_MASKS;

    #[test]
    fn every_mask_has_a_reason_and_lies_in_proc() {
        for mask in PROC_MASKS {
            assert!(!mask.reason.is_empty(), "{:?}", mask.path);
            assert!(mask.path.to_bytes().starts_with(b"/proc/"), "{:?}", mask.path);
        }
    }
}
