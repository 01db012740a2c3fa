//! Counts the kernel objects of a run that no resource limit bounds over all its processes: open
//! files, epoll watches, mappings. The kernel has only one limit for each, per user or per machine.
//!
//! A process makes these objects with system calls, which take CPU time. A run is therefore counted
//! again only after it has used some CPU time. A sleeping run costs nothing.

use std::{
    fs::{self, File},
    io::Read as _,
    os::unix::fs::MetadataExt as _,
    path::Path,
    time::{Duration, Instant},
};

use super::super::wire::MeasurementBounds;

/// CPU time in microseconds after which a run is counted again: enough for about ten thousand
/// watches.
pub(crate) const MIN_RECOUNT_CPU_US: u64 = 50_000;
/// Time after which a run that used any CPU time is counted again: the kernel drops the time of
/// children that are never waited for.
const MAX_RECOUNT_INTERVAL: Duration = Duration::from_secs(5);
/// Pause after a count, as a multiple of the count's duration: counting takes at most a fifth of a
/// CPU.
const RECOUNT_PAUSE_FACTOR: u32 = 4;
/// Maximum of descriptors whose kind one count examines.
const MAX_EXAMINED_DESCRIPTORS: usize = 256 * 1024;
/// Kernel memory of an epoll watch (struct epitem, struct eppoll_entry).
const EPOLL_WATCH_BYTES: u64 = 200;
/// Kernel memory of a mapping (struct vm_area_struct and its part of a tree).
const MAPPING_BYTES: u64 = 224;
/// Size of the smallest mapping. Kernels with larger pages make fewer mappings.
const PAGE_BYTES: u64 = 4096;
/// Mappings per process if `/proc/sys/vm/max_map_count` cannot be read.
const DEFAULT_MAX_MAP_COUNT: u64 = 65_530;

/// A process, as the counter needs it.
#[derive(Debug, Clone, Copy)]
pub(super) struct ProcessSample {
    /// Id of the process, or of one of its threads.
    pub(super) pid: i32,
    /// Size of its address space in bytes.
    pub(super) mapped_bytes: u64,
    /// Size of its descriptor table, an upper bound of its open files.
    pub(super) descriptor_table_size: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct KernelObjects {
    pub(super) descriptors: u64,
    /// Descriptors in flight: sent to a Unix socket and not yet received.
    pub(super) in_flight: u64,
    pub(super) epoll_watches: u64,
}

impl KernelObjects {
    /// Everything that the kernel counts as open files.
    pub(super) fn open_files(&self) -> u64 {
        self.descriptors + self.in_flight
    }

    /// Kernel memory in bytes that no other count includes.
    pub(super) fn bytes(&self) -> u64 {
        self.epoll_watches.saturating_mul(EPOLL_WATCH_BYTES)
    }
}

/// The result of a count, valid until the run has used more CPU time.
#[derive(Debug, Clone, Copy)]
struct CachedCount<T> {
    value: T,
    counted_at: Instant,
    count_duration: Duration,
    cpu_us: u64,
}

impl<T: Copy> CachedCount<T> {
    fn new(started: Instant, cpu_us: u64, value: T) -> Self {
        let now = Instant::now();
        Self { value, counted_at: now, count_duration: now - started, cpu_us }
    }

    /// Whether the run may hold more by now, and counting again is not too expensive.
    fn is_stale(&self, cpu_us: u64) -> bool {
        let used = self.cpu_us.abs_diff(cpu_us);
        let age = self.counted_at.elapsed();
        (used >= MIN_RECOUNT_CPU_US || used > 0 && age >= MAX_RECOUNT_INTERVAL)
            && age >= self.count_duration * RECOUNT_PAUSE_FACTOR
    }
}

/// Counts the kernel objects of one run, and caches the last counts.
#[derive(Debug)]
pub(super) struct ObjectCounter {
    objects: CachedCount<KernelObjects>,
    mappings: Option<CachedCount<u64>>,
    max_mappings: u64,
}

impl ObjectCounter {
    pub(super) fn new() -> Self {
        let max_mappings = fs::read_to_string("/proc/sys/vm/max_map_count");
        Self {
            // A new run holds next to nothing, and counting that took no time.
            objects: CachedCount {
                value: KernelObjects::default(),
                counted_at: Instant::now(),
                count_duration: Duration::ZERO,
                cpu_us: 0,
            },
            mappings: None,
            max_mappings: max_mappings
                .ok()
                .and_then(|text| text.trim().parse().ok())
                .unwrap_or(DEFAULT_MAX_MAP_COUNT),
        }
    }

    /// Open files and epoll watches of the processes of a run.
    pub(super) fn objects(
        &mut self,
        processes: &[ProcessSample],
        cpu_us: u64,
        bounds: &MeasurementBounds,
    ) -> KernelObjects {
        if bounds.recount || self.objects.is_stale(cpu_us) {
            let started = Instant::now();
            let objects = count_objects(processes, bounds);
            self.objects = CachedCount::new(started, cpu_us, objects);
        }

        let mut objects = self.objects.value;
        // Opening files takes little CPU time. Reading their number takes even less.
        let open_files_bound: u64 =
            processes.iter().map(|process| process.descriptor_table_size).sum();
        if open_files_bound > bounds.open_files {
            objects.descriptors = count_descriptors(processes, u64::MAX);
        }
        objects
    }

    /// Upper bound of the kernel memory of the processes' mappings, in bytes.
    pub(super) fn mapping_bytes_bound(&self, processes: &[ProcessSample]) -> u64 {
        let max_mappings =
            |process: &ProcessSample| self.max_mappings.min(process.mapped_bytes / PAGE_BYTES);
        processes.iter().map(max_mappings).sum::<u64>() * MAPPING_BYTES
    }

    /// Kernel memory of the processes' mappings, in bytes. Counting stops beyond `bound`.
    pub(super) fn mapping_bytes(
        &mut self,
        processes: &[ProcessSample],
        cpu_us: u64,
        bound: u64,
    ) -> u64 {
        if let Some(counted) = self.mappings.filter(|counted| !counted.is_stale(cpu_us)) {
            return counted.value;
        }

        let started = Instant::now();
        let mut bytes = 0;
        for process in processes {
            let maps = format!("/proc/{}/maps", process.pid);
            bytes += count_lines_of_file(Path::new(&maps), None, u64::MAX) * MAPPING_BYTES;
            if bytes > bound {
                break;
            }
        }
        self.mappings = Some(CachedCount::new(started, cpu_us, bytes));
        bytes
    }
}

/// Counts open files and epoll watches. Stops when a bound is exceeded, because the rest does not
/// matter.
fn count_objects(processes: &[ProcessSample], bounds: &MeasurementBounds) -> KernelObjects {
    let mut objects = KernelObjects {
        descriptors: count_descriptors(processes, bounds.open_files),
        ..KernelObjects::default()
    };
    if objects.descriptors > bounds.open_files {
        return objects;
    }

    let mut examined = 0;
    for ProcessSample { pid, .. } in processes {
        let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else {
            continue;
        };
        for descriptor in descriptors.flatten() {
            examined += 1;
            if examined > MAX_EXAMINED_DESCRIPTORS {
                return objects;
            }

            let target = fs::read_link(descriptor.path()).unwrap_or_default();
            let kind = target.as_os_str().as_encoded_bytes();
            let fdinfo = || {
                let number = descriptor.file_name();
                Path::new("/proc").join(pid.to_string()).join("fdinfo").join(number)
            };
            if kind == b"anon_inode:[eventpoll]" {
                let remaining = bounds.epoll_watches.saturating_sub(objects.epoll_watches);
                // Each watch has a line `tfd: 5 events: …`. No other line begins with this letter.
                objects.epoll_watches +=
                    count_lines_of_file(&fdinfo(), Some(b't'), remaining.saturating_add(1));
            } else if kind.starts_with(b"socket:") {
                let in_flight = descriptors_in_flight(&fdinfo());
                objects.in_flight += in_flight;
                // No file of /proc shows what these descriptors are. If the daemon lacks watches,
                // they count as epoll sets: a run that hides its sets this way is then the one to
                // end.
                if bounds.recount && in_flight > 0 {
                    objects.epoll_watches = bounds.epoll_watches.saturating_add(1);
                }
            }

            if objects.epoll_watches > bounds.epoll_watches
                || objects.open_files() > bounds.open_files
            {
                return objects;
            }
        }
    }
    objects
}

/// Number of descriptors in flight in a Unix socket: `scm_fds` in its fdinfo (Linux 5.6 and newer).
fn descriptors_in_flight(fdinfo: &Path) -> u64 {
    let text = fs::read_to_string(fdinfo).unwrap_or_default();
    let count = text.lines().find_map(|line| line.strip_prefix("scm_fds:"));
    count.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}

/// Number of the processes' descriptors. Counting stops beyond `bound`.
fn count_descriptors(processes: &[ProcessSample], bound: u64) -> u64 {
    let mut count = 0;
    // Threads of a process share one table: the filter of system calls ensures it.
    for process in processes {
        count += count_descriptors_of(process.pid);
        if count > bound {
            break;
        }
    }
    count
}

/// Number of a process's descriptors. Linux 6.2 and newer report it as the size of the directory.
fn count_descriptors_of(pid: i32) -> u64 {
    let path = format!("/proc/{pid}/fd");
    match fs::metadata(&path).map(|directory| directory.size()) {
        Ok(0) => fs::read_dir(&path).map_or(0, |entries| entries.count() as u64),
        Ok(open) => open,
        Err(_) => 0,
    }
}

/// Counts the lines of a file of /proc that start with `first_byte`, or all lines. Stops at
/// `max_lines`.
fn count_lines_of_file(path: &Path, first_byte: Option<u8>, max_lines: u64) -> u64 {
    let Ok(mut file) = File::open(path) else {
        return 0;
    };
    let mut buffer = [0; 64 * 1024];
    let (mut lines, mut is_line_start) = (0, true);

    while lines < max_lines {
        let bytes = match file.read(&mut buffer) {
            Ok(read) if read > 0 => buffer.get(..read).unwrap_or_default(),
            _ => break,
        };

        for byte in bytes {
            if is_line_start && first_byte.is_none_or(|first_byte| first_byte == *byte) {
                lines += 1;
            }
            is_line_start = *byte == b'\n';
        }
    }
    lines.min(max_lines)
}

#[cfg(test)]
mod tests {
    use std::{
        io,
        mem::MaybeUninit,
        os::fd::{AsFd, AsRawFd as _},
    };

    use rustix::{
        event::{EventfdFlags, epoll, eventfd},
        net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg},
        process::getpid,
    };

    use super::*;

    const UNBOUNDED: MeasurementBounds = MeasurementBounds {
        memory_bytes: u64::MAX,
        open_files: u64::MAX,
        epoll_watches: 1 << 40,
        recount: true,
    };

    /// This process. Other tests open files in it concurrently.
    fn this_process() -> [ProcessSample; 1] {
        [ProcessSample {
            pid: getpid().as_raw_nonzero().get(),
            mapped_bytes: 1 << 40,
            descriptor_table_size: 64,
        }]
    }

    fn watch_events(set: impl AsFd, count: u64) -> Vec<impl AsFd> {
        let events: Vec<_> =
            (0..count).map(|_| eventfd(0, EventfdFlags::CLOEXEC).unwrap()).collect();
        for event in &events {
            let data = epoll::EventData::new_u64(0);
            epoll::add(&set, event, data, epoll::EventFlags::IN).unwrap();
        }
        events
    }

    #[test]
    fn epoll_watches_and_open_files_are_counted_up_to_a_bound() {
        let set = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let _events = watch_events(&set, 300);
        let counted = count_objects(&this_process(), &UNBOUNDED);
        assert!(counted.epoll_watches >= 300 && counted.open_files() >= 300, "{counted:?}");
        let bounds = MeasurementBounds { epoll_watches: 7, ..UNBOUNDED };
        assert_eq!(count_objects(&this_process(), &bounds).epoll_watches, 8);
        let bounds = MeasurementBounds { open_files: 7, ..UNBOUNDED };
        let stopped = count_objects(&this_process(), &bounds);
        assert!(stopped.open_files() > 7 && stopped.epoll_watches == 0, "{stopped:?}");
    }

    #[test]
    fn descriptors_in_flight_are_open_files_and_may_be_epoll_sets() {
        let [here, there] = std::os::unix::net::UnixStream::pair().map(<[_; 2]>::from).unwrap();
        let fdinfo = |socket: &std::os::unix::net::UnixStream| {
            Path::new("/proc/self/fdinfo").join(socket.as_raw_fd().to_string())
        };
        assert_eq!(descriptors_in_flight(&fdinfo(&there)), 0);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let sent = [here.as_fd(), there.as_fd()];
        assert!(control.push(SendAncillaryMessage::ScmRights(&sent)));
        let data = [io::IoSlice::new(b"x")];
        sendmsg(&here, &data, &mut control, SendFlags::empty()).unwrap();
        assert_eq!(descriptors_in_flight(&fdinfo(&there)), 2);

        let watches = count_objects(&this_process(), &UNBOUNDED).epoll_watches;
        assert_eq!(watches, UNBOUNDED.epoll_watches + 1);
        let routine = MeasurementBounds { recount: false, ..UNBOUNDED };
        // Descriptors in flight stay in a count whose descriptors are counted again.
        let mut counter = ObjectCounter::new();
        assert!(counter.objects(&this_process(), 0, &UNBOUNDED).in_flight >= 2);
        let few = MeasurementBounds { open_files: 5, ..routine };
        assert!(counter.objects(&this_process(), 0, &few).in_flight >= 2);
        let watches = count_objects(&this_process(), &routine).epoll_watches;
        assert!(watches < UNBOUNDED.epoll_watches);
    }

    #[test]
    fn a_run_is_counted_again_after_it_has_used_cpu_time() {
        let mut counter = ObjectCounter::new();
        let bounds = MeasurementBounds { recount: false, ..UNBOUNDED };
        let set = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let _events = watch_events(&set, 10);
        let none = KernelObjects::default();
        assert_eq!(counter.objects(&this_process(), MIN_RECOUNT_CPU_US - 1, &bounds), none);
        assert_ne!(counter.objects(&this_process(), MIN_RECOUNT_CPU_US, &bounds), none);
        // Files that may exceed the bound are counted at once.
        let few = MeasurementBounds { open_files: 5, ..bounds };
        let counted = ObjectCounter::new().objects(&this_process(), 0, &few);
        assert!(counted.open_files() > 5 && counted.epoll_watches == 0);
    }

    #[test]
    fn mappings_are_bounded_by_the_address_space_and_counted() {
        let mut counter = ObjectCounter::new();
        let bound = counter.mapping_bytes_bound(&this_process());
        assert_eq!(bound, counter.max_mappings * MAPPING_BYTES);
        let small = ProcessSample { mapped_bytes: 10 * PAGE_BYTES, ..this_process()[0] };
        assert_eq!(counter.mapping_bytes_bound(&[small]), 10 * MAPPING_BYTES);
        let counted = counter.mapping_bytes(&this_process(), 0, u64::MAX);
        let lines = fs::read_to_string("/proc/self/maps").unwrap().lines().count() as u64;
        assert!(counted >= lines / 2 * MAPPING_BYTES, "{counted} {lines}");
        assert!(counted < bound);
    }
}
